"""The events of runs and steps, and the timer's: values as in :mod:`refold.core.events`.

Texts that the fold does not keep (titles, reasons, who did it) stay in the payload's bytes.
"""

from __future__ import annotations

from typing import NamedTuple

from refold.core.runstate import BlobRef, InputRef, StepRead


class RunEvent:
    """What the events of a run share."""

    __slots__ = ("run_id",)

    run_id: str


class HolderEvent(RunEvent):
    """What the holder of a lease says: ``epoch`` is the fencing number (N2)."""

    __slots__ = ("epoch", "holder")

    holder: str
    epoch: int


class RunStarted(RunEvent):
    """``input`` and ``input_ref``: the input inline or kept outside, or neither."""

    __slots__ = ("agent", "input", "input_ref", "pin", "retries_max")

    def __init__(
        self,
        run_id: str,
        agent: str,
        pin: str | None = None,
        input: bytes | None = None,  # noqa: A002 - the contract's word
        input_ref: BlobRef | None = None,
        retries_max: int = 2,
    ) -> None:
        self.run_id = run_id
        self.agent = agent
        self.pin = pin
        self.input = input
        self.input_ref = input_ref
        self.retries_max = retries_max


class RunLeased(HolderEvent):
    """A take (``epoch`` is the row's and one) or a renewal (it is the row's). ``accepts``: other versions
    whose runs this one can go on with."""

    __slots__ = ("accepts", "lease_ms", "version")

    def __init__(
        self,
        run_id: str,
        holder: str,
        lease_ms: int,
        epoch: int,
        version: str,
        accepts: tuple[str, ...] = (),
    ) -> None:
        self.run_id = run_id
        self.holder = holder
        self.lease_ms = lease_ms
        self.epoch = epoch
        self.version = version
        self.accepts = accepts


class RunReleased(HolderEvent):
    __slots__ = ()

    def __init__(self, run_id: str, holder: str, epoch: int) -> None:
        self.run_id = run_id
        self.holder = holder
        self.epoch = epoch


class RunSuspended(HolderEvent):
    """``waiting_for``: operation ids of calls that wait for a person."""

    __slots__ = ("waiting_for",)

    def __init__(self, run_id: str, holder: str, epoch: int, waiting_for: tuple[str, ...]) -> None:
        self.run_id = run_id
        self.holder = holder
        self.epoch = epoch
        self.waiting_for = waiting_for


class RunCompleted(HolderEvent):
    __slots__ = ("output", "output_ref", "summary")

    def __init__(
        self,
        run_id: str,
        holder: str,
        epoch: int,
        output: bytes | None = None,
        output_ref: BlobRef | None = None,
        summary: str | None = None,
    ) -> None:
        self.run_id = run_id
        self.holder = holder
        self.epoch = epoch
        self.output = output
        self.output_ref = output_ref
        self.summary = summary


class RunFailed(HolderEvent):
    __slots__ = ("code", "error")

    def __init__(self, run_id: str, holder: str, epoch: int, code: str, error: str | None = None) -> None:
        self.run_id = run_id
        self.holder = holder
        self.epoch = epoch
        self.code = code
        self.error = error


class RunStopped(RunEvent):
    """From anybody."""

    __slots__ = ("reason",)

    def __init__(self, run_id: str, reason: str | None = None) -> None:
        self.run_id = run_id
        self.reason = reason


class RunResolved(RunEvent):
    """A person's ruling on a run that waits in the review. ``action``: retry or fail."""

    __slots__ = ("action", "reason")

    def __init__(self, run_id: str, action: str, reason: str | None = None) -> None:
        self.run_id = run_id
        self.action = action
        self.reason = reason


class RunPinMoved(RunEvent):
    """Another version may run it from here on; None: any."""

    __slots__ = ("pin",)

    def __init__(self, run_id: str, pin: str | None) -> None:
        self.run_id = run_id
        self.pin = pin


class PlannedStep(NamedTuple):
    step_id: str
    name: str
    summary: str | None


class PlanSet(HolderEvent):
    __slots__ = ("steps",)

    def __init__(self, run_id: str, holder: str, epoch: int, steps: tuple[PlannedStep, ...]) -> None:
        self.run_id = run_id
        self.holder = holder
        self.epoch = epoch
        self.steps = steps


class StepEvent(HolderEvent):
    """What a holder says of one step."""

    __slots__ = ("attempt", "step_id")

    step_id: str
    attempt: int

    def _set(self, run_id: str, step_id: str, attempt: int, holder: str, epoch: int) -> None:
        self.run_id = run_id
        self.step_id = step_id
        self.attempt = attempt
        self.holder = holder
        self.epoch = epoch


class StepStarted(StepEvent):
    """``effect``: none, idempotent or external; ``heartbeat_ms``: longest silence, 0 for none."""

    __slots__ = ("effect", "heartbeat_ms", "inputs", "name", "rerunnable")

    def __init__(
        self,
        run_id: str,
        step_id: str,
        name: str,
        attempt: int,
        holder: str,
        epoch: int,
        inputs: tuple[InputRef, ...] = (),
        effect: str = "none",
        rerunnable: bool = False,
        heartbeat_ms: int = 0,
    ) -> None:
        self._set(run_id, step_id, attempt, holder, epoch)
        self.name = name
        self.inputs = inputs
        self.effect = effect
        self.rerunnable = rerunnable
        self.heartbeat_ms = heartbeat_ms


class StepCompleted(StepEvent):
    """``reads``: the outputs of other steps it has read, with the digests they had."""

    __slots__ = ("output", "output_digest", "output_ref", "reads", "summary")

    def __init__(
        self,
        run_id: str,
        step_id: str,
        attempt: int,
        holder: str,
        epoch: int,
        output: bytes | None = None,
        output_ref: BlobRef | None = None,
        output_digest: str | None = None,
        summary: str | None = None,
        reads: tuple[StepRead, ...] = (),
    ) -> None:
        self._set(run_id, step_id, attempt, holder, epoch)
        self.output = output
        self.output_ref = output_ref
        self.output_digest = output_digest
        self.summary = summary
        self.reads = reads


class StepFailed(StepEvent):
    __slots__ = ("code", "error", "retryable")

    def __init__(
        self,
        run_id: str,
        step_id: str,
        attempt: int,
        holder: str,
        epoch: int,
        code: str,
        error: str | None = None,
        retryable: bool = True,
    ) -> None:
        self._set(run_id, step_id, attempt, holder, epoch)
        self.code = code
        self.error = error
        self.retryable = retryable


class StepHeartbeat(StepEvent):
    __slots__ = ()

    def __init__(self, run_id: str, step_id: str, attempt: int, holder: str, epoch: int) -> None:
        self._set(run_id, step_id, attempt, holder, epoch)


class StepInvalidated(RunEvent):
    """Outputs that hold no more. ``mode``: by_digest or all; ``approved``: steps with an external effect may
    run again. From anybody."""

    __slots__ = ("approved", "mode", "steps")

    def __init__(
        self, run_id: str, steps: tuple[str, ...], mode: str = "by_digest", approved: bool = False
    ) -> None:
        self.run_id = run_id
        self.steps = steps
        self.mode = mode
        self.approved = approved


class TimerFired:
    """The worker proposes that the session looks at its clock (K3). From anybody it is harmless: what is due
    happens, or it is a duplicate."""

    __slots__ = ("deadline_ms",)

    def __init__(self, deadline_ms: int = 0) -> None:
        self.deadline_ms = deadline_ms
