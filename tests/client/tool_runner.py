"""An agent process for the tests: runs and reconciles tool calls as it is told, one JSON command per line.

``{"do": "run", "session", "call", "tool"}``, ``{"do": "reconcile", "session"}``, ``{"do": "arm", "point"}``.
Answers one JSON line each. ``--no-lease`` is the control: a runner that does not look at its lease.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
from pathlib import Path
from typing import Any

from client.file_gateway import FileGateway
from refold.client import Refold
from refold.client.tools import ApprovalPending, Tool, ToolCall, tool
from refold.client.tools.lease import Lease
from refold.client.tools.points import POINTS
from refold.settings import Settings


def make_tools(gateway: FileGateway) -> list[Tool]:
    """The same payment under every declaration."""

    def pay(order: str, call: ToolCall) -> dict[str, Any]:
        return dict(gateway.execute(call.key, {"paid": order}))

    def pay_once(order: str, call: ToolCall) -> dict[str, Any]:
        return dict(gateway.execute(call.key, {"paid": order}, once=True))

    return [
        tool(pay, name="asked_for", effect="external", lookup=gateway.lookup),
        tool(pay, name="never_known", effect="external"),
        tool(pay_once, name="once", effect="idempotent"),
        tool(pay, name="approved", effect="external", lookup=gateway.lookup, approval=True),
    ]


async def obey(rf: Refold, command: dict[str, Any], tools: list[Tool], lease: float) -> Any:
    if command["do"] == "arm":
        POINTS.arm(command["point"])
        return "armed"
    session = rf.session(command["session"])
    if command["do"] == "reconcile":
        outcomes = await session.reconcile(tools=tools, lease=lease)
        return [[outcome.operation_id, outcome.state] for outcome in outcomes]
    call = {
        "id": command["call"],
        "type": "function",
        "function": {"name": command["tool"], "arguments": json.dumps({"order": command["call"]})},
    }
    try:
        (result,) = await session.run_tools([call], tools=tools, message_id="m1", lease=lease)
    except ApprovalPending as pending:
        return {"pending": [outcome.operation_id for outcome in pending.pending]}
    return result["content"]


async def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--bootstrap", required=True)
    parser.add_argument("--prefix", required=True)
    parser.add_argument("--gateway", type=Path, required=True)
    parser.add_argument("--lease", type=float, default=1.0)
    parser.add_argument("--fenced", action="store_true")
    parser.add_argument("--no-lease", action="store_true")
    options = parser.parse_args()
    if options.no_lease:
        Lease.held = lambda self: True  # type: ignore[method-assign]
    tools = make_tools(FileGateway(options.gateway, fenced=options.fenced))
    loop = asyncio.get_running_loop()
    async with Refold(Settings(topic_prefix=options.prefix), bootstrap=options.bootstrap) as rf:
        print(json.dumps("ready"), flush=True)
        while line := await loop.run_in_executor(None, sys.stdin.readline):
            answer = await obey(rf, json.loads(line), tools, options.lease)
            print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    asyncio.run(main())
