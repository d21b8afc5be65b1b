"""A run from outside, from any process: wait for it, look at it, stop it, let it go on."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import aclosing
from typing import TYPE_CHECKING, Any, Final, Literal

from refold.client.agents.limits import RESULT_LOOK_S, RESULT_PAUSE_S
from refold.client.agents.outcomes import RunFailed, RunInReview, RunStopped
from refold.client.agents.outputs import Outputs
from refold.client.agents.rows import RunRow, find_run
from refold.client.agents.values import decode
from refold.errors import NotFound, TransientError
from refold.missing import no_run, no_session

if TYPE_CHECKING:
    from refold.client.events import SessionEvent
    from refold.client.receipts import Receipt
    from refold.client.session import Session
    from refold.client.snapshots import SnapshotView

_ENDS: Final = ("RunCompleted", "RunFailed", "RunStopped")


class RunHandle:
    """Made by ``agent.start`` and ``rf.run``; asks nobody by itself."""

    def __init__(self, session: Session, run_id: str) -> None:
        self.session = session
        self.id = run_id

    def __repr__(self) -> str:
        return f"RunHandle({self.id} of {self.session!r})"

    async def row(self) -> RunRow:
        """The run as committed. Raises NotFound where there is no such session, and for a run that it does
        not hold (any more: the last few that ended are kept)."""
        view = await self.session.state()
        row = find_run(view, self.id)
        if row is None:
            raise self._missing(view)
        return row

    def _missing(self, view: SnapshotView | None) -> NotFound:
        session = self.session
        if view is None:
            return no_session(session.tenant, session.id)
        return no_run(session.tenant, session.id, self.id)

    async def result(self, timeout: float | None = None) -> Any:
        """What its body returned; waits for it, at most ``timeout`` seconds (TransientError then).

        Raises RunFailed, RunStopped; RunInReview when a person has to decide first; NotFound.
        """
        try:
            async with asyncio.timeout(timeout):
                return await self._result()
        except TimeoutError:
            raise TransientError(
                f"run {self.id} has not ended within {timeout:g} s; it goes on, wait again"
            ) from None

    async def _result(self) -> Any:
        seq = 0
        while True:
            view = await self._look(seq)
            row = find_run(view, self.id)
            if row is None:
                return await self._archived(view)
            if row.ended or row.state == "review":
                return await self._outcome(row)
            seq = 0 if view is None else view.seq + 1

    async def _look(self, seq: int) -> SnapshotView | None:
        try:
            return await self.session.state(min_seq=seq or None, timeout=RESULT_LOOK_S)
        except TransientError:
            # Nothing new, or nobody answers now.
            await asyncio.sleep(RESULT_PAUSE_S)
            return await self.session.state(min_seq=0)

    async def _outcome(self, row: RunRow) -> Any:
        code, error = str(row.data["error_code"] or ""), str(row.data["error"] or "")
        if row.state == "completed":
            return await Outputs(self.session).result(row)
        if row.state == "review":
            failed = [step for step in row.steps.values() if step.state == "failed"]
            why = "; ".join(f"step {step.step_id}: {step.error_code}: {step.error}" for step in failed)
            raise RunInReview(
                f"run {self.id} waits for a person ({why or error}): `refold run retry` or `refold run fail`",
                code=code or (failed[0].error_code or "" if failed else ""),
            )
        if row.state == "failed":
            raise RunFailed(error, code=code)
        raise RunStopped(f"run {self.id} was stopped: {error or 'no reason given'}")

    async def _archived(self, view: SnapshotView | None) -> Any:
        """Its row has made room for newer ones: the journal has its end."""
        async with aclosing(self.session.events()) as events:
            async for event in events:
                payload = event.payload or {} if event.type in _ENDS else {}
                if payload.get("run_id") == self.id:
                    return await self._ended(event, payload)
        raise self._missing(view)

    async def _ended(self, event: SessionEvent, payload: dict[str, Any]) -> Any:
        if event.type == "RunFailed":
            raise RunFailed(str(payload["error"]), code=str(payload["code"]))
        if event.type == "RunStopped":
            raise RunStopped(f"run {self.id} was stopped: {payload['reason'] or 'no reason given'}")
        data, ref = payload["output"], payload["output_ref"]
        if data is None and ref is not None:
            data = await asyncio.to_thread(self.session._connection.blobs.get, ref)
        return None if data is None else decode(data)

    async def stop(self, reason: str | None = None, *, by: str | None = None) -> Receipt:
        """End it where it is. Whoever executes it stops at its next renewal, mostly at once. Raises Refused
        (``already_final``, ``unknown_run``)."""
        return await self.session.run_stopped(self.id, reason=reason, by=by, wait="accepted")

    async def move_pin(self, pin: str | None, *, by: str | None = None, reason: str | None = None) -> Receipt:
        """Let another version run it (``None``: any). Not while it is leased."""
        return await self.session.run_pin_moved(self.id, pin, by=by, reason=reason, wait="accepted")

    async def retry(
        self, *, rerun: Sequence[str] = (), by: str | None = None, reason: str | None = None
    ) -> Receipt:
        """Let a run that waits for a person go on; failed steps may be tried again. ``rerun``: completed or
        stale steps that are to run again, those with an effect outside too."""
        if rerun:
            await self.invalidate(rerun, approved=True, by=by, reason=reason)
        return await self.resolve("retry", by=by, reason=reason)

    async def resolve(
        self, action: Literal["retry", "fail"], *, by: str | None = None, reason: str | None = None
    ) -> Receipt:
        """Rule on a run that waits for a person."""
        return await self.session.run_resolved(self.id, action, by=by, reason=reason, wait="accepted")

    async def invalidate(
        self,
        steps: Sequence[str],
        *,
        mode: Literal["by_digest", "all"] = "by_digest",
        approved: bool = False,
        by: str | None = None,
        reason: str | None = None,
    ) -> Receipt:
        """Say that outputs hold no more: the steps run again, and those that read them when their outputs
        differ (``by_digest``), or all that read them directly or not (``all``). A step with an external
        effect becomes stale unless it is declared rerunnable or the call is ``approved``."""
        return await self.session.steps_invalidated(
            self.id, steps, mode=mode, approved=approved, by=by, reason=reason, wait="accepted"
        )
