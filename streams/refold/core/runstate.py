"""Runs and their steps as the session holds them: mutable values, changed only by ``refold.core.runs``.

Every ``enc`` attribute is a cache of the encoder, None when the object changed since; the core only clears
it.
"""

from __future__ import annotations

from typing import Final, Literal, NamedTuple, TypeAlias

RunState: TypeAlias = Literal["ready", "leased", "waiting", "review", "completed", "failed", "stopped"]
RunReason: TypeAlias = Literal["new", "timed_out", "released", "approval", "review", "heartbeat"]
StepState: TypeAlias = Literal["pending", "running", "completed", "failed", "stale", "invalid"]
StepEffect: TypeAlias = Literal["none", "idempotent", "external"]

RUN_STATES: Final[tuple[RunState, ...]] = (
    "ready",
    "leased",
    "waiting",
    "review",
    "completed",
    "failed",
    "stopped",
)
RUN_REASONS: Final[tuple[RunReason, ...]] = (
    "new",
    "timed_out",
    "released",
    "approval",
    "review",
    "heartbeat",
)
STEP_STATES: Final[tuple[StepState, ...]] = (
    "pending",
    "running",
    "completed",
    "failed",
    "stale",
    "invalid",
)
STEP_EFFECTS: Final[tuple[StepEffect, ...]] = ("none", "idempotent", "external")

_ENDED: Final = frozenset({"completed", "failed", "stopped"})


class BlobRef(NamedTuple):
    """Bytes kept outside, as ``refold.BlobRef`` has them."""

    uri: str
    sha256: str
    length: int
    media_type: str
    field: str


class InputRef(NamedTuple):
    """What a step was given."""

    name: str
    digest: str


class StepRead(NamedTuple):
    """An output that a step has read, and what its digest was."""

    step_id: str
    digest: str


class Step:
    """A step's row. ``attempt`` is 0 while it is pending; ``failures`` counts against the run's retries.

    ``output`` is None with a digest where it is too long to keep: the journal has it at ``output_seq``.
    """

    __slots__ = (
        "attempt",
        "effect",
        "enc",
        "epoch",
        "error",
        "error_code",
        "failures",
        "heartbeat_ms",
        "heartbeat_until_ms",
        "inputs",
        "name",
        "output",
        "output_digest",
        "output_ref",
        "output_seq",
        "reads",
        "rerunnable",
        "size",
        "started_seq",
        "state",
        "step_id",
        "summary",
        "updated_seq",
    )

    def __init__(self, step_id: str, name: str, seq: int) -> None:
        self.step_id = step_id
        self.name = name
        self.state: StepState = "pending"
        self.attempt = 0
        self.failures = 0
        self.epoch = 0
        self.effect: StepEffect = "none"
        self.rerunnable = False
        self.inputs: tuple[InputRef, ...] = ()
        self.reads: tuple[StepRead, ...] = ()
        self.output: bytes | None = None
        self.output_ref: BlobRef | None = None
        self.output_digest: str | None = None
        self.output_seq = 0
        self.summary: str | None = None
        self.error_code: str | None = None
        self.error: str | None = None
        self.heartbeat_ms = 0
        #: Session time; only of a step that runs under the present lease.
        self.heartbeat_until_ms: int | None = None
        self.started_seq = 0
        self.updated_seq = seq
        #: What it counts for among RUNS_BYTES_MAX.
        self.size = 0
        self.enc: bytes | None = None


class Run:
    """A run's row: open, or one of the last that ended (those have no steps)."""

    __slots__ = (
        "agent",
        "avoid",
        "enc",
        "epoch",
        "error",
        "error_code",
        "holder",
        "input",
        "input_digest",
        "input_ref",
        "lease_until_ms",
        "notices",
        "output",
        "output_digest",
        "output_ref",
        "pin",
        "ready_ms",
        "reason",
        "retries_max",
        "run_id",
        "size",
        "started_seq",
        "state",
        "steps",
        "summary",
        "updated_seq",
        "version",
        "waiting_for",
    )

    def __init__(self, run_id: str, agent: str, seq: int, time_ms: int) -> None:
        self.run_id = run_id
        self.agent = agent
        self.state: RunState = "ready"
        self.reason: RunReason = "new"
        self.pin: str | None = None
        self.version: str | None = None
        self.epoch = 0
        #: Holder and lease are there exactly while the state is leased. Session time.
        self.holder: str | None = None
        self.lease_until_ms: int | None = None
        self.avoid: str | None = None
        self.notices = 0
        self.ready_ms = time_ms
        self.retries_max = 0
        self.input: bytes | None = None
        self.input_ref: BlobRef | None = None
        self.input_digest: str | None = None
        self.output: bytes | None = None
        self.output_ref: BlobRef | None = None
        self.output_digest: str | None = None
        self.summary: str | None = None
        self.error_code: str | None = None
        self.error: str | None = None
        #: Operation ids; only while the state is waiting.
        self.waiting_for: tuple[str, ...] = ()
        self.started_seq = seq
        #: Of the row itself: steps have their own.
        self.updated_seq = seq
        self.steps: dict[str, Step] = {}
        #: What row and steps count for among RUNS_BYTES_MAX.
        self.size = 0
        #: The row without its steps.
        self.enc: bytes | None = None

    @property
    def is_open(self) -> bool:
        return self.state not in _ENDED
