"""What an append hands back: durable when the call returns, ruled on when you ask."""

from __future__ import annotations

from dataclasses import dataclass, field

from refold.client.limits import RULING_TIMEOUT_S
from refold.client.rulings import Rulings
from refold.client.sender import Delivery
from refold.core.codes import way_out
from refold.core.notes import NOTES
from refold.errors import RefoldError
from refold.wire.owner import RulingLine, RulingStatus


@dataclass(frozen=True, slots=True)
class Ruling:
    """The fold's word on one event.

    ``accepted``: it is number ``seq`` of its session. ``duplicate``: it repeats the event ``seq`` (0 when
    that can no longer be told) and changed nothing. ``rejected``: it changed nothing; ``code`` is one of
    ``refold.core.codes`` and ``reason`` says why.

    ``note``: of an accepted event that names what the session does not hold, so that most likely an id is
    mistyped: ``no_call`` for a result without its call, ``no_parent``. ``reason`` says what that means. The
    owner tells it while it remembers the ruling: not of a duplicate, nor where only the journal is left.
    """

    status: RulingStatus
    seq: int | None
    code: str | None = None
    reason: str | None = None
    note: str | None = None

    @property
    def accepted(self) -> bool:
        return self.status == "accepted"

    @property
    def in_effect(self) -> bool:
        """True for accepted and duplicate: the session holds the event."""
        return self.status != "rejected"


class Refused(RefoldError):
    """The fold rejected an event that the caller needed accepted. ``ruling`` has code and reason; the text
    also says what to do."""

    exit_code = 65

    def __init__(self, event_id: str, ruling: Ruling) -> None:
        text = f"event {event_id} was rejected, {ruling.code}: {ruling.reason}."
        what = way_out(ruling.code)
        super().__init__(text if what is None else f"{text} What to do: {what}.")
        self.event_id = event_id
        self.ruling = ruling


@dataclass(frozen=True, slots=True)
class Receipt:
    """An event that is durable in the inbox at ``(partition, offset)``. Durable is not accepted."""

    event_id: str
    type: str
    partition: int
    offset: int
    append_time_ms: int
    message_id: str | None = None
    _rulings: Rulings | None = field(default=None, repr=False, compare=False)
    _sent_at: float = field(default=0.0, repr=False, compare=False)
    _stamped: bool = field(default=True, repr=False, compare=False)

    async def ruling(self, timeout: float = RULING_TIMEOUT_S) -> Ruling:
        """Wait for the fold's ruling, at most ``timeout`` seconds. Asking again is free.

        Raises :class:`refold.errors.TransientError` when time runs out, saying what is known (the event is
        durable and will be ruled on).
        """
        if self._rulings is None:
            raise RefoldError("this receipt is not connected to a client")
        delivery = Delivery(self.partition, self.offset, self.append_time_ms)
        line = await self._rulings.wait(delivery, self._sent_at, timeout, streamed=self._stamped)
        return ruling_of(line)

    async def accepted(self, timeout: float = RULING_TIMEOUT_S) -> int:
        """Wait for the ruling and return its seq; raises :class:`Refused` when the event was rejected."""
        ruling = await self.ruling(timeout)
        if not ruling.in_effect:
            raise Refused(self.event_id, ruling)
        return ruling.seq or 0


def ruling_of(line: RulingLine) -> Ruling:
    reason = line.reason
    if line.note is not None:
        reason = next((words for note, words in NOTES.items() if note == line.note), None)
    return Ruling(line.status, line.seq, line.code, reason, line.note)
