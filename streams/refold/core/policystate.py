"""Small parts of a session's state: its policy, the sessions that belong to it, the parts of reducers.

Who changes one of them, or ``timer_ms``, sets ``session.enc_tail = None``.
"""

from __future__ import annotations

from typing import Final, Literal, NamedTuple, TypeAlias

OnBusy: TypeAlias = Literal["queue", "reject", "interrupt", "branch"]
TtlAction: TypeAlias = Literal["close", "delete"]
ChildKind: TypeAlias = Literal["child", "fork"]
ReducedStatus: TypeAlias = Literal["ok", "quarantined"]

ON_BUSY: Final[tuple[OnBusy, ...]] = ("queue", "reject", "interrupt", "branch")
TTL_ACTIONS: Final[tuple[TtlAction, ...]] = ("close", "delete")
CHILD_KINDS: Final[tuple[ChildKind, ...]] = ("child", "fork")
REDUCED_STATUSES: Final[tuple[ReducedStatus, ...]] = ("ok", "quarantined")


class SessionPolicy(NamedTuple):
    """What the session does when it is busy, idle or long. Replaced as a whole; 0 means never."""

    on_busy: OnBusy = "queue"
    ttl_ms: int = 0
    ttl_action: TtlAction = "close"
    summary_messages: int = 0
    summary_bytes: int = 0


class PolicyChange(NamedTuple):
    """What of the policy is to be another; None keeps the present value. Not judged yet."""

    on_busy: str | None = None
    ttl_ms: int | None = None
    ttl_action: str | None = None
    summary_messages: int | None = None
    summary_bytes: int | None = None


class Child(NamedTuple):
    """A session that belongs to this one. ``call``: operation id of the call it answers, None for a fork."""

    session: str
    kind: ChildKind
    call: str | None
    seq: int


class Reduced:
    """The state of one of the application's own reducers. ``state`` is canonical JSON."""

    __slots__ = ("error", "name", "seq", "state", "status", "version")

    def __init__(self, name: str, version: int, seq: int, state: bytes) -> None:
        self.name = name
        self.version = version
        self.seq = seq
        self.status: ReducedStatus = "ok"
        self.state = state
        self.error: str | None = None
