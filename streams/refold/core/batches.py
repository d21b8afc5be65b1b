"""What stands on the batches topic: batches of tokens, acks of clients, markers of the journal.

Values only, treated as immutable; the rule over them is :mod:`refold.core.progress`.
"""

from __future__ import annotations

from typing import Final, NamedTuple, TypeAlias

from refold.core.limits import USAGE_MAX


class Delta(NamedTuple):
    """A piece of content part ``part``. ``kind``: text, reasoning, refusal, tool_call or other."""

    kind: str
    part: int
    #: UTF-8, cut anywhere, inside a character too.
    data: bytes
    call_id: str | None = None
    name: str | None = None


class TokenUsage(NamedTuple):
    """Token counts as the provider reported them."""

    input: int = 0
    output: int = 0
    cached: int = 0
    reasoning: int = 0

    def plus(self, other: TokenUsage) -> TokenUsage:
        return TokenUsage(
            min(self.input + other.input, USAGE_MAX),
            min(self.output + other.output, USAGE_MAX),
            min(self.cached + other.cached, USAGE_MAX),
            min(self.reasoning + other.reasoning, USAGE_MAX),
        )


NO_USAGE: Final = TokenUsage()


class Batch:
    """A batch of tokens; ``seq`` 0 is a heartbeat. ``usage_mode``: total or delta. ``sent_ms`` is data."""

    __slots__ = (
        "attempt",
        "deltas",
        "extra",
        "finish",
        "generation",
        "provider_response_id",
        "sent_ms",
        "seq",
        "usage",
        "usage_mode",
    )

    def __init__(
        self,
        generation: str,
        attempt: int,
        seq: int,
        deltas: tuple[Delta, ...] = (),
        finish: str | None = None,
        usage: TokenUsage | None = None,
        usage_mode: str = "total",
        provider_response_id: str | None = None,
        sent_ms: int = 0,
        extra: bytes | None = None,
    ) -> None:
        self.generation = generation
        self.attempt = attempt
        self.seq = seq
        self.deltas = deltas
        self.finish = finish
        self.usage = usage
        self.usage_mode = usage_mode
        self.provider_response_id = provider_response_id
        self.sent_ms = sent_ms
        self.extra = extra

    def __repr__(self) -> str:
        # No content: reprs end up in logs.
        return f"Batch({self.generation!r} {self.attempt}/{self.seq})"


class Ack:
    """How far ``client`` has the generation; ``seq`` 0: connected, no news."""

    __slots__ = ("attempt", "client", "generation", "seq")

    def __init__(self, generation: str, attempt: int, client: str, seq: int) -> None:
        self.generation = generation
        self.attempt = attempt
        self.client = client
        self.seq = seq

    def __repr__(self) -> str:
        return f"Ack({self.generation!r} {self.attempt}/{self.seq} by {self.client!r})"


class Marker:
    """What the journal decided, among the batches: ``kind`` is begin, stop, end or forget. ``time_ms`` is
    session time."""

    __slots__ = (
        "attempt",
        "error",
        "generation",
        "generator",
        "holder",
        "journal_seq",
        "kind",
        "last_seq",
        "lease_ms",
        "message_id",
        "mode",
        "state",
        "time_ms",
    )

    def __init__(
        self,
        generation: str,
        kind: str,
        attempt: int,
        mode: str = "restart",
        holder: str = "",
        lease_ms: int = 0,
        state: str = "",
        last_seq: int = 0,
        journal_seq: int = 0,
        message_id: str | None = None,
        generator: str = "",
        time_ms: int = 0,
        error: str | None = None,
    ) -> None:
        self.generation = generation
        self.kind = kind
        self.attempt = attempt
        self.mode = mode
        self.holder = holder
        self.lease_ms = lease_ms
        self.state = state
        self.last_seq = last_seq
        self.journal_seq = journal_seq
        self.message_id = message_id
        self.generator = generator
        self.time_ms = time_ms
        self.error = error

    def __repr__(self) -> str:
        return f"Marker({self.generation!r} {self.kind} {self.attempt} {self.mode} {self.state})"


Item: TypeAlias = Batch | Ack | Marker
