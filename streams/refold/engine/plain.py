"""The fold's fast lane: plain messages on sessions in memory, many per call, without the values that
:func:`refold.engine.step.step` and :func:`refold.engine.overlay.apply` make for each record.

Invariant: a record that goes through here has exactly the effects it has through ``step`` and ``apply``: same
journal bytes, same state, same ruling (a property test runs both). It can only be accepted here; a record
that needs anything else is left, untouched, to ``step``.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from confluent_kafka import Message

from refold.core import reducers
from refold.core.plain import append_plain
from refold.engine import recordheaders
from refold.engine.cache import SessionCache
from refold.engine.overlay import TOUCHED_BYTES, Journal, Overlay, PartitionOverlay, touch
from refold.engine.step import SMALL_BYTES, StepView
from refold.wire.journal import journal_frame
from refold.wire.plain import frames, names_of, read_plain_record
from refold.wire.snapshot_messages import encode_plain
from refold.wire.varint import zlong

#: Frame and four numbers of at most 10 bytes: a journal record is at most this much longer than the envelope.
JOURNAL_EXTRA_BYTES = 45

_TYPE = "MessageAppended"


class PlainView(StepView, Protocol):
    """What the fast lane may look at."""

    @property
    def cache(self) -> SessionCache: ...


def fold_plain(
    view: PlainView, overlay: Overlay, part: PartitionOverlay, messages: Sequence[Message], at: int, stop: int
) -> int:
    """Fold ``messages[at:stop]``, all of ``part``'s partition, up to the first one that is not plain.

    Returns its index, or ``stop``.
    """
    if reducers.takes_messages:
        return at
    partition = part.partition
    journal, touched_by_key, rulings = part.journal, part.touched, part.rulings
    peek = view.cache.peek
    make = tuple.__new__
    framing, frame, partition_bytes = frames(), journal_frame(), zlong(partition)
    headers = recordheaders.journal(None, _TYPE)
    value_max = view.limits.journal_bytes_max - SMALL_BYTES - JOURNAL_EXTRA_BYTES
    size, time_ms, time_bytes, first = 0, -1, b"", at
    while at < stop:
        message = messages[at]
        key, value = message.key(), message.value()
        if key is None or value is None or len(value) > value_max:
            break
        given = message.headers()
        if given and given != headers:
            # The one header that the SDK sends is the one that the journal gets anyway.
            break
        entry = peek(key)
        if entry is None or entry.partition != partition:
            break
        session = entry.session
        names = entry.names
        if not names:
            names = entry.names = names_of(session.tenant, session.session)
        plain = read_plain_record(value, framing, names)
        if plain is None:
            break
        offset = message.offset()
        try:
            added = append_plain(session, message.timestamp()[1], partition, offset, *plain)
        except Exception:
            # A fault of ours, and the session may be half changed. As it was, it goes to ``step``, which
            # quarantines it should the fold raise there as well.
            view.rebuild(entry)
            break
        if added is None:
            break
        seq = session.seq
        if session.time_ms != time_ms:
            time_ms = session.time_ms
            time_bytes = zlong(time_ms)
        seq_bytes = zlong(seq)
        record = b"".join((frame, seq_bytes, time_bytes, partition_bytes, zlong(offset), value[5:]))
        if added.kept is not None:
            encode_plain(added, seq_bytes, time_bytes)
        entry.used = True
        touched = touched_by_key.get(key)
        if touched is None:
            touched = touch(part, entry)
            size += entry.encoded_bytes + TOUCHED_BYTES
        touched.events.append(len(journal))
        journal.append(make(Journal, (entry.key, record, headers)))
        size += len(record)
        rulings[offset] = (seq, plain[0])
        at += 1
        part.next_offset = offset + 1
    done = at - first
    overlay.bytes += size
    overlay.records += done
    view.cache.hits += done
    return at
