"""The writing half of runs: one method per event of a run, each a thin payload over ``publish``.

For those who keep leases and steps themselves; ``refold.Agent`` does it for everybody else. Every method
takes the options of :meth:`refold.client.writes.SessionWrites.publish` and returns a :class:`Receipt`; the
envelope's ``run``, ``step`` and ``attempt`` are filled in. What the fold makes of them is in
docs/concepts/runs.md.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from typing import Any, Final, Literal

from refold.client.receipts import Receipt
from refold.client.writes import SessionWrites

Effect = Literal["none", "idempotent", "external"]

#: Longest silence of a step unless it says otherwise.
HEARTBEAT_MS_DEFAULT: Final = 300_000

#: How long a run is its holder's before others may take it.
RUN_LEASE_MS_DEFAULT: Final = 30_000


class RunWrites(SessionWrites):
    """Mixed into :class:`refold.client.session.Session`, with the other writes."""

    async def _of_run(
        self, event_type: str, run_id: str, payload: Mapping[str, Any], options: dict[str, Any]
    ) -> Receipt:
        options.setdefault("run", run_id)
        return await self.publish(event_type, {"run_id": run_id, **payload}, **options)

    # Anybody

    async def run_started(
        self,
        run_id: str,
        agent: str,
        *,
        input: bytes | None = None,  # noqa: A002 - the contract's word
        pin: str | None = None,
        title: str | None = None,
        retries_max: int = 2,
        **options: Any,
    ) -> Receipt:
        """Begin a run: an agent's code is to do something in this session. Idempotent by ``run_id``."""
        payload = {
            "agent": agent,
            "pin": pin,
            "input": input,
            "title": title,
            "retries_max": retries_max,
        }
        return await self._of_run("RunStarted", run_id, payload, options)

    async def run_stopped(
        self, run_id: str, *, reason: str | None = None, by: str | None = None, **options: Any
    ) -> Receipt:
        """End an open run; its holder finds out with its next event."""
        return await self._of_run("RunStopped", run_id, {"reason": reason, "by": by}, options)

    async def run_resolved(
        self,
        run_id: str,
        action: Literal["retry", "fail"],
        *,
        by: str | None = None,
        reason: str | None = None,
        **options: Any,
    ) -> Receipt:
        """Rule on a run that waits in the review."""
        payload = {"action": action, "by": by, "reason": reason}
        return await self._of_run("RunResolved", run_id, payload, options)

    async def run_pin_moved(
        self,
        run_id: str,
        pin: str | None,
        *,
        by: str | None = None,
        reason: str | None = None,
        **options: Any,
    ) -> Receipt:
        """Let another version have the run; ``None``: the next one that takes it."""
        return await self._of_run("RunPinMoved", run_id, {"pin": pin, "by": by, "reason": reason}, options)

    async def steps_invalidated(
        self,
        run_id: str,
        steps: Sequence[str],
        *,
        mode: Literal["by_digest", "all"] = "by_digest",
        approved: bool = False,
        by: str | None = None,
        reason: str | None = None,
        **options: Any,
    ) -> Receipt:
        """Outputs of these steps hold no more. ``approved``: those with an external effect may run again."""
        payload = {"steps": list(steps), "mode": mode, "by": by, "reason": reason, "approved": approved}
        return await self._of_run("StepInvalidated", run_id, payload, options)

    # The holder

    async def run_leased(
        self,
        run_id: str,
        *,
        holder: str,
        epoch: int,
        version: str,
        lease_ms: int = RUN_LEASE_MS_DEFAULT,
        accepts: Sequence[str] = (),
        **options: Any,
    ) -> Receipt:
        """Take the run (``epoch`` is its row's and one) or renew the lease (the row's)."""
        payload = {
            "holder": holder,
            "lease_ms": lease_ms,
            "epoch": epoch,
            "version": version,
            "accepts": list(accepts),
        }
        return await self._of_run("RunLeased", run_id, payload, options)

    async def run_released(
        self, run_id: str, *, holder: str, epoch: int, reason: str | None = None, **options: Any
    ) -> Receipt:
        """Give the run back: it is ready for others at once."""
        payload = {"holder": holder, "epoch": epoch, "reason": reason}
        return await self._of_run("RunReleased", run_id, payload, options)

    async def run_suspended(
        self, run_id: str, waiting_for: Sequence[str], *, holder: str, epoch: int, **options: Any
    ) -> Receipt:
        """Wait for people, without a holder. ``waiting_for``: operation ids of calls that wait for them."""
        payload = {"holder": holder, "epoch": epoch, "waiting_for": list(waiting_for)}
        return await self._of_run("RunSuspended", run_id, payload, options)

    async def run_completed(
        self,
        run_id: str,
        *,
        holder: str,
        epoch: int,
        output: bytes | None = None,
        summary: str | None = None,
        **options: Any,
    ) -> Receipt:
        """The run is done; none of its steps may be running."""
        payload = {"holder": holder, "epoch": epoch, "output": output, "summary": summary}
        return await self._of_run("RunCompleted", run_id, payload, options)

    async def run_failed(
        self,
        run_id: str,
        code: str,
        *,
        holder: str,
        epoch: int,
        error: str | None = None,
        **options: Any,
    ) -> Receipt:
        """The run ends without a result."""
        payload = {"holder": holder, "epoch": epoch, "code": code, "error": error}
        return await self._of_run("RunFailed", run_id, payload, options)

    async def plan_set(
        self,
        run_id: str,
        steps: Sequence[Mapping[str, Any]],
        *,
        holder: str,
        epoch: int,
        **options: Any,
    ) -> Receipt:
        """What the run is going to do, in order: each with ``step_id``, ``name``, perhaps ``summary``."""
        made = [{"summary": None, **step} for step in steps]
        payload = {"holder": holder, "epoch": epoch, "steps": made}
        return await self._of_run("PlanSet", run_id, payload, options)

    # The holder, of one step

    async def _of_step(
        self, event_type: str, run_id: str, payload: Mapping[str, Any], options: dict[str, Any]
    ) -> Receipt:
        options.setdefault("step", payload["step_id"])
        options.setdefault("attempt", payload["attempt"])
        return await self._of_run(event_type, run_id, payload, options)

    async def step_started(
        self,
        run_id: str,
        step_id: str,
        *,
        holder: str,
        epoch: int,
        step_attempt: int = 1,
        name: str | None = None,
        inputs: Mapping[str, str] | None = None,
        effect: Effect = "none",
        rerunnable: bool = False,
        heartbeat_ms: int = HEARTBEAT_MS_DEFAULT,
        **options: Any,
    ) -> Receipt:
        """A step is about to run; run it once this is accepted. ``inputs``: name → digest."""
        payload = {
            "step_id": step_id,
            "name": name or step_id,
            "attempt": step_attempt,
            "holder": holder,
            "epoch": epoch,
            "inputs": [{"name": key, "digest": digest} for key, digest in (inputs or {}).items()],
            "effect": effect,
            "rerunnable": rerunnable,
            "heartbeat_ms": heartbeat_ms,
        }
        return await self._of_step("StepStarted", run_id, payload, options)

    async def step_completed(
        self,
        run_id: str,
        step_id: str,
        output: bytes | None = None,
        *,
        holder: str,
        epoch: int,
        step_attempt: int = 1,
        summary: str | None = None,
        reads: Mapping[str, str] | None = None,
        **options: Any,
    ) -> Receipt:
        """The step has its output. ``reads``: step id → digest of the output that it has read."""
        payload = {
            "step_id": step_id,
            "attempt": step_attempt,
            "holder": holder,
            "epoch": epoch,
            "output": output,
            "output_digest": None if output is None else hashlib.sha256(output).hexdigest(),
            "summary": summary,
            "reads": [{"step_id": key, "digest": digest} for key, digest in (reads or {}).items()],
        }
        return await self._of_step("StepCompleted", run_id, payload, options)

    async def step_failed(
        self,
        run_id: str,
        step_id: str,
        code: str,
        *,
        holder: str,
        epoch: int,
        step_attempt: int = 1,
        error: str | None = None,
        retryable: bool = True,
        **options: Any,
    ) -> Receipt:
        """The attempt failed; one that is not ``retryable`` sends the run to the review."""
        payload = {
            "step_id": step_id,
            "attempt": step_attempt,
            "holder": holder,
            "epoch": epoch,
            "code": code,
            "error": error,
            "retryable": retryable,
        }
        return await self._of_step("StepFailed", run_id, payload, options)

    async def step_heartbeat(
        self,
        run_id: str,
        step_id: str,
        *,
        holder: str,
        epoch: int,
        step_attempt: int = 1,
        **options: Any,
    ) -> Receipt:
        """The running step is alive."""
        payload = {"step_id": step_id, "attempt": step_attempt, "holder": holder, "epoch": epoch}
        return await self._of_step("StepHeartbeat", run_id, payload, options)
