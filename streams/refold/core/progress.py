"""Progress of one generation: the pure rule over its records on the batches topic.

The fold and every follower run this same rule over the same records in offset order, and it looks at nothing
else: neither at the inbox nor at a clock. So a fenced attempt is never shown by anybody, and what a follower
shows is what the fold counted. Labels (docs/concepts/generations.md):

G1  A generation begins with its first ``begin``; batches and acks without one are refused.
G2  ``begin(n)``: n up to the current attempt is a repeat. ``restart`` forgets text, finish and acks (clients
    stay, at 0); ``continue`` keeps them; both move the attempt's usage to ``usage_before``.
G3  Batches of a lower attempt are fenced, of a higher one refused; of the current one they are taken in the
    order of their seq: repeats are ignored, gaps refused. After the end they are late. Seq 0 is a heartbeat.
G4  The first finish reason stays; content after it is kept. Both are counted.
G5  Usage is what the producer says it is: a running total replaces, a delta adds.
G6  Acks never go back and never beyond what was produced when they came; they count after the end too.
G7  ``length`` counts the UTF-8 bytes of text; ``chain`` is a digest of all deltas in order.
G12 ``forget``: the session has dropped the row, or is deleted; nothing is known of the generation any more,
    and a begin after it is another generation of that id.

:func:`advance` is total: whatever comes in, it raises nothing, and what it keeps is bounded.
"""

from __future__ import annotations

from collections.abc import Iterable
from hashlib import sha256
from typing import Final, Literal, TypeAlias

from refold.core.batches import NO_USAGE, Ack, Batch, Delta, Item, Marker, TokenUsage
from refold.core.codes import RejectCode
from refold.core.limits import (
    ACK_CLIENT_BYTES_MAX,
    ACK_CLIENTS_MAX,
    FINISH_REASON_BYTES_MAX,
    ID_BYTES_MAX,
    USAGE_MAX,
)
from refold.core.texts import clip

__all__ = [
    "CHAIN_BYTES",
    "NO_USAGE",
    "Ack",
    "Applied",
    "Batch",
    "Delta",
    "Ignored",
    "Item",
    "Marker",
    "Progress",
    "Refused",
    "TokenUsage",
    "Verdict",
    "advance",
    "next_chain",
    "text_bytes",
]

CHAIN_BYTES: Final = 16

Ended: TypeAlias = Literal["", "finished", "failed", "stopped"]


class Progress:
    """Where a generation stands. ``ended`` is empty while it is open.

    Counters: ``repeats``, ``fenced``, ``late`` batches ignored; ``after_finish`` batches with content after
    the finish reason; ``finishes`` reasons after the first.
    """

    __slots__ = (
        "acks",
        "after_finish",
        "attempt",
        "chain",
        "ended",
        "fenced",
        "finish",
        "finishes",
        "first_offset",
        "generator",
        "holder",
        "last_ms",
        "last_offset",
        "late",
        "lease_ms",
        "length",
        "message_id",
        "mode",
        "produced",
        "provider_response_id",
        "repeats",
        "started_ms",
        "started_seq",
        "stopping",
        "text_attempt",
        "usage",
        "usage_before",
    )

    def __init__(self) -> None:
        self.attempt = 0
        #: Attempt whose begin the present text begins with.
        self.text_attempt = 0
        self.mode = "restart"
        self.holder = ""
        self.lease_ms = 0
        #: Seq of the last batch taken.
        self.produced = 0
        #: UTF-8 bytes of all text deltas.
        self.length = 0
        self.chain = b""
        self.finish: str | None = None
        self.ended: Ended = ""
        self.stopping = False
        self.usage = NO_USAGE
        #: Of the attempts before this one.
        self.usage_before = NO_USAGE
        #: Offset of the begin of ``text_attempt``: who starts there sees all of the present text.
        self.first_offset = 0
        #: Of the last record that changed anything but a counter, and its append time.
        self.last_offset = 0
        self.last_ms = 0
        #: Session time of the first begin.
        self.started_ms = 0
        #: Its journal seq; 0: unknown, because the first begin that was read is a later attempt's.
        self.started_seq = 0
        #: Client → (seq, append time of its last ack), least recently heard of first.
        self.acks: dict[str, tuple[int, int]] = {}
        self.provider_response_id: str | None = None
        self.generator = ""
        self.message_id: str | None = None
        self.repeats = 0
        self.fenced = 0
        self.late = 0
        self.after_finish = 0
        self.finishes = 0

    @property
    def usage_total(self) -> TokenUsage:
        """Of all attempts, lost ones included."""
        return self.usage_before.plus(self.usage)

    def copy(self) -> Progress:
        other = Progress.__new__(Progress)
        for name in Progress.__slots__:
            setattr(other, name, getattr(self, name))
        other.acks = dict(self.acks)
        return other

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Progress):
            return NotImplemented
        return all(getattr(self, n) == getattr(other, n) for n in Progress.__slots__) and list(
            self.acks
        ) == list(other.acks)

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return f"Progress({self.attempt}/{self.produced} {self.ended or 'open'})"


class Applied:
    __slots__ = ()

    def __repr__(self) -> str:
        return "Applied()"


class Ignored:
    """Nothing but a counter changed. ``why``: repeat, fenced, late (after the end) or stale (an ack)."""

    __slots__ = ("why",)

    def __init__(self, why: Literal["repeat", "fenced", "late", "stale"]) -> None:
        self.why = why

    def __repr__(self) -> str:
        return f"Ignored({self.why})"


class Refused:
    """For the rejected topic. ``code`` is one of :mod:`refold.core.codes`; ``reason`` holds no content."""

    __slots__ = ("code", "reason")

    def __init__(self, code: RejectCode, reason: str) -> None:
        self.code: RejectCode = code
        self.reason = reason

    def __repr__(self) -> str:
        return f"Refused({self.code}: {self.reason})"


Verdict: TypeAlias = Applied | Ignored | Refused

APPLIED: Final = Applied()
REPEAT: Final = Ignored("repeat")
FENCED: Final = Ignored("fenced")
LATE: Final = Ignored("late")
STALE: Final = Ignored("stale")


def advance(
    progress: Progress | None, item: Item, offset: int, append_ms: int
) -> tuple[Progress | None, Verdict]:
    """The progress after the record at ``offset``, and what became of the record.

    ``progress`` (None: nothing known) is changed and returned; a refused record changes nothing at all, an
    ignored one only its counter. ``append_ms``: the record's append time. Raises nothing.
    """
    if type(item) is Batch:
        if progress is None:
            return None, _unknown()
        return progress, _batch(progress, item, offset, append_ms)
    if type(item) is Ack:
        if progress is None:
            return None, _unknown()
        return progress, _ack(progress, item, offset, append_ms)
    return _marker(progress, item, offset, append_ms)  # type: ignore[arg-type]


def next_chain(chain: bytes, deltas: Iterable[Delta]) -> bytes:
    """G7: the digest after a batch of ``deltas``, CHAIN_BYTES long."""
    digest = sha256(chain)
    for kind, part, data, call_id, name in deltas:
        digest.update(
            b"%b\0%d\0%d\0%b%b\0%b\0"
            % (
                kind.encode(errors="surrogatepass"),
                part,
                len(data),
                data,
                call_id.encode(errors="surrogatepass") if call_id else b"",
                name.encode(errors="surrogatepass") if name else b"",
            )
        )
    return digest.digest()[:CHAIN_BYTES]


def text_bytes(deltas: Iterable[Delta]) -> int:
    """G7: UTF-8 bytes of the text deltas."""
    return sum([len(delta.data) for delta in deltas if delta.kind == "text"])


def _unknown() -> Refused:
    return Refused("unknown_generation", "no generation with this id has begun here")


def _batch(progress: Progress, batch: Batch, offset: int, append_ms: int) -> Verdict:
    if progress.ended:
        progress.late += 1
        return LATE
    if batch.attempt < progress.attempt:
        progress.fenced += 1
        return FENCED
    if batch.attempt > progress.attempt:
        return Refused(
            "batch_ungranted", f"attempt {batch.attempt} was not granted, attempt {progress.attempt} is"
        )
    seq = batch.seq
    provider = batch.provider_response_id
    if provider is not None and _long(provider, ID_BYTES_MAX):
        return Refused("bad_id", f"provider_response_id is longer than {ID_BYTES_MAX} bytes")
    if seq == 0:
        if batch.deltas or batch.finish or batch.usage:
            return Refused("bad_value", "a heartbeat (seq 0) carries no content, finish reason or usage")
    elif seq <= progress.produced:
        progress.repeats += 1
        return REPEAT
    elif seq > progress.produced + 1:
        return Refused("batch_gap", f"batch {seq} came after batch {progress.produced}")
    else:
        usage = batch.usage
        if usage is not None:
            if batch.usage_mode not in ("total", "delta"):
                return Refused("bad_value", "usage_mode must be total or delta")
            if min(usage) < 0 or max(usage) > USAGE_MAX:
                return Refused("bad_value", f"usage must be 0 to {USAGE_MAX}")
            progress.usage = progress.usage.plus(usage) if batch.usage_mode == "delta" else usage
        _take(progress, batch)
        progress.produced = seq
    if provider is not None:
        progress.provider_response_id = provider
    progress.last_offset = offset
    progress.last_ms = append_ms
    return APPLIED


def _take(progress: Progress, batch: Batch) -> None:
    """G4 and G7: content, then the finish reason."""
    deltas = batch.deltas
    if progress.finish is not None and deltas:
        progress.after_finish += 1
    progress.chain = next_chain(progress.chain, deltas)
    for delta in deltas:
        if delta.kind == "text":
            progress.length += len(delta.data)
    if batch.finish:
        if progress.finish is None:
            progress.finish = clip(batch.finish, FINISH_REASON_BYTES_MAX)
        else:
            progress.finishes += 1


def _ack(progress: Progress, ack: Ack, offset: int, append_ms: int) -> Verdict:
    if not progress.text_attempt <= ack.attempt <= progress.attempt:
        # Of a text that is gone, or of an attempt that nobody can have seen yet.
        return STALE
    client = ack.client
    if not client or _long(client, ACK_CLIENT_BYTES_MAX):
        return Refused("bad_id", f"client must be 1 to {ACK_CLIENT_BYTES_MAX} bytes long")
    acks = progress.acks
    old, _ = acks.pop(client, (0, 0))
    if len(acks) >= ACK_CLIENTS_MAX:
        del acks[next(iter(acks))]
    # The last heard of stands last.
    acks[client] = (max(old, min(ack.seq, progress.produced)), append_ms)
    progress.last_offset = offset
    progress.last_ms = append_ms
    return APPLIED


def _marker(
    progress: Progress | None, marker: Marker, offset: int, append_ms: int
) -> tuple[Progress | None, Verdict]:
    if marker.kind == "begin":
        return _begin(progress, marker, offset, append_ms)
    if marker.kind == "forget":
        return None, LATE if progress is None else APPLIED
    if marker.kind not in ("stop", "end"):
        return progress, Refused("bad_value", "a marker's kind must be begin, stop, end or forget")
    if progress is None:
        # The journal's last word on a generation that has been forgotten meanwhile.
        return None, LATE
    if progress.ended:
        progress.late += 1
        return progress, LATE
    if marker.kind == "stop":
        if progress.stopping:
            progress.repeats += 1
            return progress, REPEAT
        progress.stopping = True
    else:
        if marker.state not in ("finished", "failed", "stopped"):
            return progress, Refused("bad_value", "an end's state must be finished, failed or stopped")
        progress.ended = marker.state  # type: ignore[assignment]
    progress.last_offset = offset
    progress.last_ms = append_ms
    return progress, APPLIED


def _begin(
    progress: Progress | None, marker: Marker, offset: int, append_ms: int
) -> tuple[Progress | None, Verdict]:
    texts = (marker.holder, marker.generator, marker.message_id or "")
    if marker.attempt < 1 or marker.mode not in ("restart", "continue"):
        return progress, Refused("bad_value", "a begin has an attempt from 1, and mode restart or continue")
    if any(_long(text, ID_BYTES_MAX) for text in texts):
        return progress, Refused("bad_id", f"a name in the marker is longer than {ID_BYTES_MAX} bytes")
    if progress is not None and progress.ended:
        progress.late += 1
        return progress, LATE
    if progress is None:
        progress = Progress()
        progress.started_ms = marker.time_ms
        progress.started_seq = marker.journal_seq if marker.attempt == 1 else 0
        anew = True
    else:
        if marker.attempt <= progress.attempt:
            progress.repeats += 1
            return progress, REPEAT
        anew = marker.mode == "restart"
    progress.attempt = marker.attempt
    progress.mode = marker.mode
    progress.holder = marker.holder
    progress.lease_ms = marker.lease_ms
    progress.generator = marker.generator
    progress.message_id = marker.message_id
    progress.usage_before = progress.usage_before.plus(progress.usage)
    progress.usage = NO_USAGE
    if anew:
        progress.text_attempt = marker.attempt
        progress.first_offset = offset
        progress.produced = progress.length = 0
        progress.chain = b""
        progress.finish = None
        progress.provider_response_id = None
        progress.acks = {client: (0, ms) for client, (_, ms) in progress.acks.items()}
    progress.last_offset = offset
    progress.last_ms = append_ms
    return progress, APPLIED


def _long(text: str, bytes_max: int) -> bool:
    # A character has at most four bytes: short texts need no encoding.
    return len(text) * 4 > bytes_max and len(text.encode(errors="surrogatepass")) > bytes_max
