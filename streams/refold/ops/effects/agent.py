"""The agent of ``refold verify effects``: a turn that can be begun again, by anybody, after any crash.

It remembers nothing: what was done is read from the session. Every message has an id that follows from the
turn, so appending it again changes nothing; every call's operation id follows from its message, so running it
again gives the first result. Take the harness' names away and about thirty lines remain: read it as an
example of an agent on refold.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from refold.client.ids import new_id
from refold.client.recovery import Recovery
from refold.client.snapshots import SnapshotView
from refold.demo.model import LocalModel, Model
from refold.demo.player import SYSTEM_PROMPT
from refold.errors import NotFound, TransientError
from refold.formats.markers import NOT_KNOWN
from refold.ops.effects.protocol import AgentTurn

#: While a call waits for a review, its session is asked for news this often at least.
REVIEW_LOOK_S: Final = 2.0


async def play(turn: AgentTurn, model: Model | None = None) -> None:
    """One turn, from wherever an earlier try left it to its answer. Default: the deterministic model."""
    session, model = turn.session, model or LocalModel()
    asked_by, answered_by = f"{turn.turn_id}/calls", f"{turn.turn_id}/answer"
    recovery = await _recover(turn)
    if recovery is not None:
        recent = recovery.snapshot.data["context"]["recent_messages"]
        if any(message["message_id"] == answered_by for message in recent):
            return
        if recovery.plan:
            await session.reconcile(tools=turn.tools, lease=turn.lease_s)
    else:
        await session.append(SYSTEM_PROMPT, role="system", message_id=f"{session.id}/system")
    await session.append(turn.user, role="user", message_id=f"{turn.turn_id}/user")
    results: list[str] = []
    if turn.calls:
        text = await model.announce((), [call["function"]["name"] for call in turn.calls])
        asked = {"role": "assistant", "content": text, "tool_calls": list(turn.calls)}
        await session.append(asked, message_id=asked_by)
        # One after the other: the calls of these conversations build on each other.
        for call in turn.calls:
            results.append(await _result(turn, asked_by, call))  # noqa: PERF401
    # A real model reads the conversation; the deterministic one only its tools' results.
    transcript = () if isinstance(model, LocalModel) else (await session.context()).messages
    answer = {"role": "assistant", "content": await model.close(transcript, results)}
    await session.append(answer, message_id=answered_by, wait="accepted")


async def _recover(turn: AgentTurn) -> Recovery | None:
    """Where the session stands; ``None`` when nothing of it is there yet."""
    try:
        return await turn.session.recover()
    except NotFound:
        return None


async def _result(turn: AgentTurn, asked_by: str, call: Mapping[str, Any]) -> str:
    """The call's result, run by us or by whoever did; waits while a person has to decide."""
    while True:
        answers = await turn.session.run_tools(
            [call], tools=turn.tools, message_id=asked_by, lease=turn.lease_s
        )
        said = str(answers[0]["content"])
        if said != NOT_KNOWN:
            return said
        if turn.sabotage == "rerun-unknown":
            await _give_up(turn, call["id"])
        else:
            await _reviewed(turn, call["id"])


def _unknown(view: SnapshotView | None, call_id: str) -> Mapping[str, Any] | None:
    """The call's row while nobody can tell what came of it."""
    rows = [] if view is None else view.open_calls
    return next((row for row in rows if row["call_id"] == call_id and row["state"] == "unknown"), None)


async def _reviewed(turn: AgentTurn, call_id: str) -> None:
    """Return when somebody has ruled. Nothing is held meanwhile: any process may wait in our place."""
    view = await turn.session.state()
    while _unknown(view, call_id) is not None:
        try:
            view = await turn.session.state(
                min_seq=(0 if view is None else view.seq) + 1, timeout=REVIEW_LOOK_S
            )
        except TransientError:
            view = await turn.session.state()


async def _give_up(turn: AgentTurn, call_id: str) -> None:
    """Sabotage rerun-unknown: say that it was not done, without asking anybody."""
    row = _unknown(await turn.session.state(), call_id)
    if row is not None:
        await turn.session.tool_reconciled(
            row["operation_id"], "not_done", holder=new_id(), call_attempt=row["attempt"], wait="accepted"
        )
