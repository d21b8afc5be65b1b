"""The state of one session: what the fold remembers, as mutable values owned by the engine.

Mutable because the hot path is a budget (about 15 µs per event); deterministic all the same, because only
:func:`refold.core.evolve.evolve` changes it and a session never leaves its owner except as encoded bytes.

Every ``enc`` attribute is a cache of ``refold.wire.snapshot``: the encoded bytes of the object it sits on,
None when the object changed since. The core only ever clears it.

Ids that begin with ``@`` are the fold's own (messages made from tool events, calls without an operation id).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, Literal, TypeAlias

from refold.core.envelope import SessionLink
from refold.core.limits import WINDOW_BYTES_DEFAULT, WINDOW_MESSAGES_DEFAULT
from refold.core.messagestate import Message
from refold.core.policystate import Child, Reduced, SessionPolicy
from refold.core.runstate import Run

#: Version of the snapshot's shape; a reader decodes older ones with defaults.
SNAPSHOT_VERSION: Final = 3

Status: TypeAlias = Literal["open", "closed", "quarantined", "releasing"]
CallState: TypeAlias = Literal[
    "intended", "awaiting_approval", "started", "done", "failed", "denied", "unknown"
]
GenerationState: TypeAlias = Literal["started", "stopping", "finished", "failed"]
Approval: TypeAlias = Literal["", "required", "requested", "approved", "denied"]


class Call:
    """A row of the tool ledger. ``order``: position among the calls of its message."""

    __slots__ = (
        "approval",
        "arguments",
        "arguments_length",
        "arguments_sha256",
        "arguments_valid",
        "attempt",
        "call_id",
        "declared",
        "effect",
        "enc",
        "error",
        "error_code",
        "fencing",
        "holder",
        "intended_seq",
        "is_error",
        "lease_until_ms",
        "message_id",
        "message_seq",
        "operation_id",
        "order",
        "result_seq",
        "result_summary",
        "size",
        "state",
        "tool",
        "updated_seq",
    )

    def __init__(self, operation_id: str, tool: str, seq: int) -> None:
        self.operation_id = operation_id
        self.tool = tool
        self.call_id: str | None = None
        self.message_id: str | None = None
        self.message_seq = 0
        self.arguments: str | None = ""
        self.arguments_length = 0
        self.arguments_sha256: str | None = None
        self.arguments_valid = True
        self.effect = ""
        self.state: CallState = "intended"
        self.approval: Approval = ""
        self.attempt = 0
        self.holder: str | None = None
        self.lease_until_ms: int | None = None
        self.fencing = 0
        self.result_summary: str | None = None
        self.is_error = False
        self.error_code: str | None = None
        self.error: str | None = None
        self.intended_seq = seq
        self.updated_seq = seq
        self.result_seq = 0
        self.declared = False
        self.order = 0
        self.size = 0
        self.enc: bytes | None = None


class Generation:
    """A row of the generations: open (``started``, ``stopping``) or one of the last that ended.

    ``holder``, ``lease_until_ms`` and ``provider_response_id`` are of the open ones only.
    """

    __slots__ = (
        "attempt",
        "durability",
        "error_code",
        "finish_reason",
        "generation_id",
        "generator",
        "holder",
        "last_seq",
        "lease_until_ms",
        "length",
        "message_id",
        "mode",
        "params_digest",
        "provider_response_id",
        "reply_to",
        "sha256",
        "started_seq",
        "state",
        "updated_seq",
    )

    def __init__(self, generation_id: str, message_id: str, seq: int) -> None:
        self.generation_id = generation_id
        self.state: GenerationState = "started"
        self.attempt = 1
        self.mode = "restart"
        self.holder: str | None = None
        #: Session time.
        self.lease_until_ms: int | None = None
        self.message_id = message_id
        #: None: the head at the time it finishes; "": a new root.
        self.reply_to: str | None = None
        self.generator = ""
        #: SHA-256 of the parameters' bytes, hex.
        self.params_digest: str | None = None
        self.provider_response_id: str | None = None
        self.durability = "strict"
        self.last_seq = 0
        self.length = 0
        self.sha256: str | None = None
        self.finish_reason: str | None = None
        self.error_code: str | None = None
        self.started_seq = seq
        self.updated_seq = seq


class OrphanResult:
    """One result whose call is not known (``matched`` empty), or known but not yet in the context."""

    __slots__ = ("call_id", "error", "error_code", "is_error", "matched", "operation_id", "state", "summary")

    def __init__(
        self,
        operation_id: str | None,
        call_id: str | None,
        state: CallState,
        is_error: bool,
        summary: str | None,
        error_code: str | None,
        error: str | None,
        matched: str = "",
    ) -> None:
        self.operation_id = operation_id
        self.call_id = call_id
        self.state: CallState = state
        self.is_error = is_error
        self.summary = summary
        self.error_code = error_code
        self.error = error
        #: Operation id of the row it closed.
        self.matched = matched


class Orphan:
    """A message of results held outside the context until its calls' messages are there."""

    __slots__ = ("message", "results")

    def __init__(self, message: Message, results: list[OrphanResult]) -> None:
        self.message = message
        self.results = results


class Summary:
    __slots__ = ("seq", "text", "through_message_id", "through_seq")

    def __init__(self, text: str, through_message_id: str, through_seq: int, seq: int) -> None:
        self.text = text
        self.through_message_id = through_message_id
        self.through_seq = through_seq
        self.seq = seq


class Fact:
    __slots__ = ("seq", "size", "value")

    def __init__(self, value: str, seq: int, size: int) -> None:
        self.value = value
        self.seq = seq
        self.size = size


class Config:
    __slots__ = ("digest", "json", "seq")

    def __init__(self, digest: str, json: str, seq: int) -> None:
        self.digest = digest
        self.json = json
        self.seq = seq


class Producer:
    """What was last accepted from a stamped producer. ``event_time_ms`` is the largest one."""

    __slots__ = ("counter", "enc", "epoch", "event_time_ms", "seq")

    def __init__(self, epoch: int, counter: int, event_time_ms: int, seq: int) -> None:
        self.epoch = epoch
        self.counter = counter
        self.event_time_ms = event_time_ms
        self.seq = seq
        self.enc: bytes | None = None


class Trunk:
    """Where a path that was left had been cut off."""

    __slots__ = ("complete", "summary_seq", "through", "uncovered")

    def __init__(self, through: int, uncovered: int, complete: bool, summary_seq: int) -> None:
        self.through = through
        self.uncovered = uncovered
        self.complete = complete
        self.summary_seq = summary_seq


class Session:
    """One session. ``seq == 0`` means that there is none (not yet, or deleted)."""

    __slots__ = (
        "aliases",
        "answering",
        "branch_bytes",
        "branch_messages",
        "calls",
        "calls_bytes",
        "children",
        "complete",
        "config",
        "created_ms",
        "dedup_floor_ms",
        "enc_branches",
        "enc_context",
        "enc_generations",
        "enc_head",
        "enc_memory",
        "enc_mid",
        "enc_rest",
        "enc_runs",
        "enc_settings",
        "enc_tail",
        "event_ids",
        "facts",
        "facts_bytes",
        "generations",
        "head",
        "held",
        "hold_for_summary",
        "idle_since_ms",
        "link",
        "message_ids",
        "next_offset",
        "open_calls",
        "opened_seq",
        "orphans",
        "orphans_bytes",
        "parked",
        "partition",
        "policy",
        "producers",
        "recent",
        "recent_bytes",
        "reduced",
        "resume_status",
        "runs",
        "runs_bytes",
        "seq",
        "session",
        "status",
        "status_seq",
        "summary",
        "summary_active",
        "system",
        "system_bytes",
        "tenant",
        "through",
        "time_ms",
        "timer_ms",
        "timer_seq",
        "trail",
        "trunk_id",
        "trunks",
        "uncovered",
        "window_bytes",
        "window_messages",
    )

    def __init__(self, tenant: str, session: str) -> None:
        self.tenant = tenant
        self.session = session
        self.clear()

    def clear(self) -> None:
        """Forget everything but the key: the state before the first event, and after a deletion."""
        self.seq = 0
        self.created_ms = 0
        self.time_ms = 0
        self.status: Status = "open"
        #: Seq of the event that made the present status.
        self.status_seq = 0
        #: What the session was before its quarantine.
        self.resume_status: Status = "open"
        #: Events parked since the quarantine began.
        self.parked = 0
        #: Seq of SessionOpened, 0 while the session only began by use.
        self.opened_seq = 0
        self.link: SessionLink | None = None
        #: Inbox position after the last accepted event.
        self.partition = 0
        self.next_offset = 0

        # Settings.
        self.window_messages = WINDOW_MESSAGES_DEFAULT
        self.window_bytes = WINDOW_BYTES_DEFAULT
        self.hold_for_summary = False

        # Context.
        self.system: list[Message] = []
        self.system_bytes = 0
        #: The end of the active path, in path order.
        self.recent: list[Message] = []
        self.recent_bytes = 0
        #: Messages off the active path, by id, in the order of their seq.
        self.branch_messages: dict[str, Message] = {}
        self.branch_bytes = 0
        #: False while no held message answers a call, True once one may: then cuts must be looked at closely.
        self.answering = False
        #: Every held message: system, recent, branches, orphans.
        self.held: dict[str, Message] = {}
        #: Id of the last message of the active path, "" at the root.
        self.head = ""
        #: Id and seq of the message before ``recent``: what was trimmed ends there.
        self.trunk_id = ""
        self.through = 0
        self.complete = True
        #: Trimmed messages that no active summary covers.
        self.uncovered = 0
        #: Seqs of the last trimmed messages of the active path, in path order: low 32 bits, 4 bytes each.
        self.trail = b""
        self.trunks: dict[str, Trunk] = {}
        self.aliases: dict[str, str] = {}
        self.summary: Summary | None = None
        self.summary_active = False

        # Tools, in the order the rows were made.
        self.calls: dict[str, Call] = {}
        self.calls_bytes = 0
        self.open_calls = 0
        self.orphans: list[Orphan] = []
        self.orphans_bytes = 0

        #: In the order they were started.
        self.generations: dict[str, Generation] = {}

        #: None: the defaults.
        self.policy: SessionPolicy | None = None
        #: The armed deadline (refold.core.timers), session time; 0: none.
        self.timer_ms = 0
        #: Seq of the last TimerFired, and the time of the last other event before it.
        self.timer_seq = 0
        self.idle_since_ms = 0
        #: In the order they were started.
        self.runs: dict[str, Run] = {}
        self.runs_bytes = 0
        self.children: list[Child] = []
        #: Parts of the application's own reducers, by name.
        self.reduced: dict[str, Reduced] = {}

        self.facts: dict[str, Fact] = {}
        self.facts_bytes = 0
        self.config: Config | None = None

        # De-duplication: least recently used producer first; the rings' layout is in refold.core.dedup.
        self.producers: dict[str, Producer] = {}
        self.dedup_floor_ms: int | None = None
        self.event_ids = b""
        self.message_ids = b""

        # Caches of the encoder: what never changes (two pieces); window settings; system and summary;
        # branch messages; facts, config, tools, branches, link; what changes rarely of the engine part;
        # generations; runs; policy, deadline, runs, children and reducers' parts.
        self.enc_head: bytes | None = None
        self.enc_mid: bytes | None = None
        self.enc_settings: bytes | None = None
        self.enc_context: bytes | None = None
        self.enc_branches: bytes | None = None
        self.enc_rest: bytes | None = None
        self.enc_memory: bytes | None = None
        self.enc_generations: bytes | None = None
        self.enc_runs: bytes | None = None
        self.enc_tail: bytes | None = None

    @property
    def key(self) -> str:
        return f"{self.tenant}/{self.session}"

    @property
    def exists(self) -> bool:
        """False before the first event and after SessionDeleted: the state topic then holds a tombstone."""
        return self.seq > 0

    @property
    def overflow(self) -> bool:
        """True when the window is above its settings: a turn kept whole, or messages awaiting a summary."""
        return len(self.recent) > self.window_messages or self.recent_bytes > self.window_bytes

    def __repr__(self) -> str:
        return f"Session({self.key} seq={self.seq} {self.status})"


def initial(tenant: str, session: str) -> Session:
    """The state of a session before its first event."""
    return Session(tenant, session)


FINAL_STATES: Final[Mapping[CallState, bool]] = {"done": True, "failed": True, "denied": True}
"""``unknown`` is not final: it waits for someone who asks the external system, and is never dropped."""
