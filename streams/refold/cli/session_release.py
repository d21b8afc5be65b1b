"""Releasing a quarantined session: SessionReleased, its parked events again in order, SessionReleaseFinished.

While a session is quarantined or releasing the worker parks its events: the original bytes are in the
rejected topic (code ``quarantined``), and a ``SessionEventParked`` event in the journal says which. A release
sends them to the inbox again with an origin marked ``replay``; only those are folded until it is finished, so
nothing overtakes them. Finishing names how many were replayed and is refused (``release_behind``) while more
were parked meanwhile; then those follow.

Running it again after an interruption is safe: what the journal shows as replayed is not sent again, and what
was sent without a ruling being seen is a duplicate.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import aclosing
from typing import Any, Final

from confluent_kafka import Message

from refold.client import Refold, Ruling, Session, SessionEvent
from refold.client.fallback import header_map
from refold.client.limits import RULING_TIMEOUT_S
from refold.client.receipts import ruling_of
from refold.core.envelope import Envelope, InboxOrigin
from refold.errors import NotFound, TransientError, UsageError
from refold.missing import no_session
from refold.wire.envelope import decode_envelope, encode_envelope

#: Rounds of "finish, learn that more were parked, replay those": each is shorter than the one before unless
#: events come faster than they can be replayed.
ROUNDS_MAX: Final = 100

Position = tuple[int, int]


async def release(
    rf: Refold, session: str, *, by: str | None, reason: str | None, progress: Callable[[str], None]
) -> dict[str, Any]:
    """Returns counts. Raises UsageError when the session is not quarantined, TransientError when it is
    quarantined again on the way (its cause is still there)."""
    chat = rf.session(session)
    view = await chat.state(min_seq=0)
    if view is None:
        raise no_session(chat.tenant, chat.id)
    if view.status not in ("quarantined", "releasing"):
        raise UsageError(f"session {session!r} is {view.status}, not quarantined: nothing to release.")
    await (await chat.publish("SessionReleased", {"by": by, "reason": reason})).accepted()
    rulings: list[Ruling] = []
    for _ in range(ROUNDS_MAX):
        parked, replayed = await quarantine_of(chat)
        due = parked[len(rulings) :]
        if due:
            progress(f"replaying {len(due)} parked events")
            rulings += await _replay(rf, chat, due, replayed)
        counts = Counter(ruling.status for ruling in rulings)
        payload = {
            "accepted": counts["accepted"] + counts["duplicate"],
            "refused": counts["rejected"],
            "parked": len(rulings),
        }
        finished = await (await chat.publish("SessionReleaseFinished", payload)).ruling()
        if finished.in_effect:
            refused = Counter(ruling.code for ruling in rulings if ruling.code)
            return {
                "session": session,
                "replayed": len(rulings),
                "accepted": counts["accepted"],
                "duplicates": counts["duplicate"],
                "refused": counts["rejected"],
                "refused_by_code": dict(sorted(refused.items())),
            }
        if finished.code != "release_behind":
            raise TransientError(f"the release was not finished, {finished.code}: {finished.reason}")
    raise TransientError(
        f"events are parked faster than they are replayed ({len(rulings)} so far): slow the producers down "
        "and run it again"
    )


async def quarantine_of(chat: Session) -> tuple[list[SessionEvent], dict[Position, int]]:
    """The present quarantine in the journal: its ``SessionEventParked`` events in order, and the seq of each
    parked record that was replayed and accepted already."""
    parked: list[SessionEvent] = []
    replayed: dict[Position, int] = {}
    quarantined = False
    async with aclosing(chat.events()) as source:
        async for event in source:
            origin = event.envelope.origin
            if event.type == "SessionQuarantined" and not quarantined:
                quarantined, parked, replayed = True, [], {}
            elif event.type == "SessionReleaseFinished":
                quarantined = False
            elif event.type == "SessionEventParked":
                parked.append(event)
            elif origin is not None and origin.replay:
                replayed[origin.partition, origin.offset] = event.seq
    return parked, replayed


async def _replay(
    rf: Refold, chat: Session, due: Sequence[SessionEvent], replayed: Mapping[Position, int]
) -> list[Ruling]:
    origins = [_origin(event) for event in due]
    originals = await _originals(rf, chat, {at for at in origins if at not in replayed})
    rulings: list[Ruling] = []
    for position in origins:
        if position in replayed:
            rulings.append(Ruling("duplicate", replayed[position]))
            continue
        found = originals.get(position)
        if found is None:
            raise NotFound(
                f"the parked record {position[0]}/{position[1]} is no longer in the rejected topic: its "
                "retention has passed. Nothing after it was replayed; send that event again yourself"
            )
        ruling = await _send(rf, chat, found)
        if ruling.code == "quarantined":
            raise TransientError(
                f"event {found.event_id} brought the fold to a halt again: the session is quarantined as "
                "before and nothing is lost. Fix the cause (the worker's log names it), then release again"
            )
        rulings.append(ruling)
    return rulings


def _origin(event: SessionEvent) -> Position:
    payload = event.payload or {}
    return int(payload["partition"]), int(payload["offset"])


async def _originals(rf: Refold, chat: Session, wanted: set[Position]) -> dict[Position, Envelope]:
    """The parked records by inbox position, from the session's partition of the rejected topic."""
    connection = rf.connection
    topic, inbox = connection.names.rejected, connection.names.inbox
    found: dict[Position, Envelope] = {}

    def visit(message: Message) -> bool:
        if message.key() == chat.key:
            headers = header_map(message)
            if headers.get("refold-code") == b"quarantined":
                position = _parse_origin(headers.get("refold-origin", b""))
                if position in wanted and position not in found:
                    envelope = decode_envelope(message.value())
                    append_ms = int(headers.get("refold-append-ms", b"0"))
                    found[position] = envelope.replace(
                        origin=InboxOrigin(inbox, *position, append_time_ms=append_ms, hops=0, replay=True)
                    )
        return len(found) < len(wanted)

    def read(reader: Any) -> None:
        first, _ = reader.end(topic, chat.partition)
        reader.sweep(topic, chat.partition, first, visit)

    await connection.readers.scan(read)
    return found


def _parse_origin(header: bytes) -> Position | None:
    parts = header.decode("utf-8", "replace").rsplit("/", 2)
    if len(parts) != 3 or not (parts[1].isdigit() and parts[2].isdigit()):
        return None
    return int(parts[1]), int(parts[2])


async def _send(rf: Refold, chat: Session, envelope: Envelope) -> Ruling:
    connection = rf.connection
    sent_at = time.monotonic()
    delivery = await connection.sender.send(
        connection.names.inbox,
        chat.key,
        encode_envelope(envelope),
        (("refold-type", envelope.type.encode()),),
        chat.partition,
    )
    # The record bears its first producer's stamp, so its ruling does not come through our stream.
    line = await connection.rulings.wait(delivery, sent_at, RULING_TIMEOUT_S, streamed=False)
    return ruling_of(line)
