"""One record: what happens because of it. No I/O, no clock, no randomness; the shell carries the effects out.

``step(view, record) -> Effects``: key and partition check (a record on the wrong partition is forwarded, rule
P) → decode → decide → journal value → evolve. The session inside ``Effects.entry`` has been changed in place:
it is owned by the engine and never leaves it (the hot path is a budget).

Whatever a record holds, ``step`` returns a ruling or a forward; only a fault of ours makes it raise, and a
fold that raises quarantines its session instead. The one exception is :class:`BatchesBehind`: not yet.
"""

from __future__ import annotations

from typing import Final

from refold.core.decide import decide
from refold.core.envelope import Envelope
from refold.core.events import Event, GenerationFinished, Opaque
from refold.core.evolve import evolve
from refold.core.notes import Note, note_on
from refold.core.rulings import Accepted, Duplicate, Parked, Rejected, Ruling
from refold.core.slots import split_key
from refold.core.usage import UsageEvent
from refold.core.work import work_items
from refold.engine import family, made, markers, recordheaders
from refold.engine.cache import Entry
from refold.engine.chunks import Record
from refold.engine.forwards import forward
from refold.engine.overlay import Journal, Output
from refold.engine.reducers import watching
from refold.engine.side import SideChange
from refold.engine.slips import read
from refold.engine.stepview import Limits as Limits
from refold.engine.stepview import StepView as StepView
from refold.engine.usage import UsageChange
from refold.engine.work import work_outputs
from refold.errors import InvalidRecord
from refold.wire.envelope import decode_envelope
from refold.wire.events import decode_event
from refold.wire.journal import journal_value

#: Key (512 bytes at most), our one header and the record's overhead together stay below this.
SMALL_BYTES: Final = 2_048


class BatchesBehind(Exception):
    """Rule G10: whether this record is accepted hangs on batches that have not been read yet. Nothing was
    changed; step it again when they have."""


class Effects:
    """What one record causes. ``ruling`` is ``None`` for a forward: the other partition's owner rules."""

    __slots__ = (
        "deleted",
        "entry",
        "journal",
        "note",
        "opaque",
        "outputs",
        "producer_id",
        "quarantined",
        "ruling",
        "side",
    )

    def __init__(
        self,
        ruling: Ruling | None,
        producer_id: str | None = None,
        entry: Entry | None = None,
        journal: tuple[Journal, ...] = (),
        outputs: tuple[Output, ...] = (),
    ) -> None:
        self.ruling = ruling
        self.producer_id = producer_id
        #: The session that changed, ``None`` when nothing changed.
        self.entry = entry
        self.journal = journal
        self.outputs = outputs
        #: What its writer most likely did not mean.
        self.note: Note | None = None
        #: What an accepted event does to side rows.
        self.side: tuple[SideChange, ...] = ()
        #: Accepted without being understood.
        self.opaque = False
        #: The session is gone after this record.
        self.deleted = False
        #: The error that put the session into quarantine.
        self.quarantined: BaseException | None = None


def step(view: StepView, record: Record) -> Effects:
    key = record.key
    entry = None if key is None else view.cached(key)
    if entry is None:
        try:
            tenant, session_id = split_key(key)
        except InvalidRecord as bad:
            return _reject(view, record, Rejected(bad.code, bad.reason))  # type: ignore[arg-type]
        if key is None:
            return _reject(
                view, record, Rejected("bad_key", "the record has no key; it must be tenant/session")
            )
        target = view.partition_of(key)
        if target != record.partition and not view.sabotage.fold_misrouted:
            return _forward(view, record, target)
        entry = view.load(key, record.partition, tenant, session_id)
    elif entry.partition != record.partition and not view.sabotage.fold_misrouted:
        return _forward(view, record, entry.partition)
    session = entry.session
    env: Envelope
    event: Event
    try:
        if record.value is None:
            env, event = made.deletion(record, session.tenant, session.session)
        else:
            env = read(decode_envelope, record.value)
            if env.session != session.session or env.tenant != session.tenant:
                return _reject(
                    view,
                    record,
                    Rejected("key_mismatch", "the key does not name the envelope's tenant and session"),
                    env.producer_id,
                )
            event = read(decode_event, env)
    except InvalidRecord as bad:
        return _reject(view, record, Rejected(bad.code, bad.reason))  # type: ignore[arg-type]
    append_ms = record.append_ms
    if record.headers:
        before = recordheaders.forwarded(record)
        if before is not None:
            append_ms = before.append_ms
    time_ms = max(session.time_ms, append_ms)
    if type(event) is GenerationFinished:
        event.progress = view.progress(entry.key, record.partition, event.generation_id)
    try:
        ruling = decide(session, env, event, time_ms)
        if type(ruling) is Accepted or (view.sabotage.skip_dedup and type(ruling) is Duplicate):
            if type(ruling) is not Accepted:
                ruling = Accepted(session.seq + 1, time_ms)
            return _accept(view, record, entry, env, event, ruling)
    except InvalidRecord as bad:
        return _reject(view, record, Rejected(bad.code, bad.reason), env.producer_id)  # type: ignore[arg-type]
    except Exception as error:
        return _quarantine(view, record, entry, env, event, error)
    if type(ruling) is Duplicate:
        return Effects(ruling, env.producer_id)
    if isinstance(ruling, Parked):
        return _park(view, record, entry, env, ruling)
    if isinstance(ruling, Rejected):
        if ruling.code == "batches_missing" and not view.caught_up(record):
            raise BatchesBehind
        return _reject(view, record, ruling, env.producer_id)
    return Effects(ruling, env.producer_id)


def _accept(
    view: StepView, record: Record, entry: Entry, env: Envelope, event: Event, ruling: Accepted
) -> Effects:
    session = entry.session
    value = journal_value(ruling.seq, ruling.time_ms, record.partition, record.offset, env)
    headers = recordheaders.journal(record.headers, env.type)
    key = entry.key
    # The sum is only made where it can matter: one header is our own short one.
    if (len(headers) > 1 or len(value) > view.limits.journal_bytes_max - SMALL_BYTES) and (
        recordheaders.size(key, value, headers) > view.limits.journal_bytes_max
    ):
        return _reject(
            view,
            record,
            Rejected(
                "too_large", f"its journal record would have {len(value)} bytes, more than the topic takes"
            ),
            env.producer_id,
        )
    note = note_on(session, event)
    was = markers.before(session, event)
    relatives = family.before(session, event) if session.children else None
    watch = watching()
    if watch is not None:
        watch.forget()
    evolve(session, ruling.seq, ruling.time_ms, record.partition, record.offset, env, event)
    effects = Effects(ruling, env.producer_id, entry, (Journal(key, value, headers),))
    effects.note = note
    if was is not None:
        effects.outputs = markers.outputs(view.topics, record.partition, key, session, ruling, event, was)
    if relatives is not None:
        effects.outputs += family.outputs(
            view, key, relatives, session, ruling.seq, ruling.time_ms, env.event_id
        )
    effects.opaque = type(event) is Opaque
    if isinstance(event, UsageEvent):
        effects.side = (UsageChange(view.usages, session.tenant, session.session, event, ruling.time_ms),)
    if session.seq == 0:
        effects.deleted = True
    if watch is not None and (stopped := watch.take()):
        names = (session.tenant, session.session)
        effects.journal += tuple(
            [made_event(record, entry, *made.reducer_quarantined(record, *names, part)) for part in stopped]
        )
    return effects


def made_event(record: Record, entry: Entry, env: Envelope, event: Event) -> Journal:
    """Journal and fold an event of the worker's own: not decided, it states what has happened."""
    session = entry.session
    seq = session.seq + 1
    time_ms = max(session.time_ms, record.append_ms)
    value = journal_value(seq, time_ms, record.partition, record.offset, env)
    evolve(session, seq, time_ms, record.partition, record.offset, env, event)
    return Journal(entry.key, value, recordheaders.journal(None, env.type))


def _park(view: StepView, record: Record, entry: Entry, env: Envelope, ruling: Rejected) -> Effects:
    """Rejected for now; the journal says so, so that a release can tell whether it replayed everything."""
    session = entry.session
    note = made_event(record, entry, *made.parked(record, session.tenant, session.session, env.event_id))
    effects = _reject(view, record, ruling, env.producer_id)
    effects.entry = entry
    effects.journal = (note,)
    return effects


def _quarantine(
    view: StepView, record: Record, entry: Entry, env: Envelope, event: Event, error: Exception
) -> Effects:
    """The fold raised. The session may be half changed: rebuild it, say so in the journal, park the
    record."""
    entry = view.rebuild(entry)
    session = entry.session
    wanted = work_items(session)
    first = made_event(
        record, entry, *made.quarantine(record, session.tenant, session.session, env.event_id, error)
    )
    withdrawn = work_outputs(view.topics, record.partition, entry.key, wanted, session)
    ruling = decide(session, env, event, session.time_ms)
    if not isinstance(ruling, Rejected):
        ruling = Parked("quarantined", "the fold raised at this event")
    effects = _park(view, record, entry, env, ruling)
    effects.journal = (first, *effects.journal)
    effects.outputs = (*withdrawn, *effects.outputs)
    effects.quarantined = error
    return effects


def _reject(view: StepView, record: Record, ruling: Rejected, producer_id: str | None = None) -> Effects:
    topics = view.topics
    key, value, headers = recordheaders.rejected(
        topics.inbox, record, ruling.code, ruling.reason, view.limits.rejected_bytes_max
    )
    out = Output(topics.rejected, record.partition, key, value, headers)
    return Effects(ruling, producer_id, None, (), (out,))


def _forward(view: StepView, record: Record, target: int) -> Effects:
    out = forward(view.topics.inbox, record, target, view.limits.inbox_bytes_max)
    if isinstance(out, Rejected):
        return _reject(view, record, out)
    return Effects(None, None, None, (), (out,))
