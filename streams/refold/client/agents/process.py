"""An agent as a process: signals, drain, exit status.

The first SIGTERM or SIGINT drains: no new runs, running steps reach their end within ``max_seconds``, leases
are given back, so that another process goes on at once. A second one ends the process where it is; its runs
go on elsewhere when their leases are over. Exit status as the worker's: 0 drained, 75 the time was over, 128
+ signal after a second one, else the error's.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
from typing import TYPE_CHECKING, NoReturn

from refold.client.agents.limits import CONCURRENCY_DEFAULT, DRAIN_S_DEFAULT, RELEASE_S_MAX
from refold.client.client import Refold
from refold.draining import CUT_SHORT, drain_on_signal
from refold.errors import RefoldError

if TYPE_CHECKING:
    from refold.client.agents.agent import Agent
    from refold.settings import Settings


def run_process(
    agent: Agent,
    settings: Settings | None = None,
    *,
    concurrency: int = CONCURRENCY_DEFAULT,
    max_seconds: float = DRAIN_S_DEFAULT,
) -> int:
    """Serve until a signal; the exit status. Raises what opening the client raises. Main thread only."""
    return asyncio.run(_serve(agent, settings, concurrency, max_seconds))


async def _serve(agent: Agent, settings: Settings | None, concurrency: int, max_seconds: float) -> int:
    stop = asyncio.Event()
    drain_on_signal(
        stop,
        max_seconds + 2 * RELEASE_S_MAX,
        lambda: _say(f"agent_draining agent={agent.name} max_seconds={max_seconds:g}"),
    )
    async with Refold(settings) as rf:
        _say(f"agent_started agent={agent.name} version={agent.version} process={rf.producer_id}")
        outcome = await agent.serve(rf, concurrency=concurrency, stop=stop, max_seconds=max_seconds)
    _say(f"agent_stopped agent={agent.name} outcome={outcome}")
    return 0 if outcome == "drained" else CUT_SHORT


def main(agent: Agent) -> NoReturn:
    parser = argparse.ArgumentParser(description=f"Serve agent {agent.name}, version {agent.version}.")
    parser.add_argument("--concurrency", type=int, default=CONCURRENCY_DEFAULT, help="runs at once")
    parser.add_argument(
        "--max-seconds", type=float, default=DRAIN_S_DEFAULT, help="how long a drain waits for running steps"
    )
    given = parser.parse_args()
    try:
        code = run_process(agent, concurrency=given.concurrency, max_seconds=given.max_seconds)
    except RefoldError as error:
        _say(f"error: {error}")
        code = error.exit_code
    sys.exit(code)


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)
