"""Generation events: who may generate, when the message enters, and the rows in the session.

::

    (none) -> started -> stopping          GenerationStarted, GenerationStopped
                 |          |
                 v          v
              finished | failed            GenerationFinished, GenerationFailed: the first one stays (D19)

Labels (docs/concepts/generations.md), continued from :mod:`refold.core.progress`:

G8   A lease is session time (append times) and only journal events move it. The attempt is the fencing
     number: it rises by one, when the lease is over or its own holder asks.
G9   The message hangs where ``reply_to`` says; null is the head at the time it enters. So generations at
     once enter in the order of their GenerationFinished (D15).
G10  GenerationFinished is accepted when the batches have reached its last seq, and where they end there their
     length and digest are its own. ``event.progress`` says what the batches are; evolve never looks at it.
G11  A closed session still takes what ends a generation under way, and nothing that begins one.

At most OPEN_GENERATIONS_MAX open rows (more are refused) and ENDED_GENERATIONS_MAX ended ones (the one that
ended first goes). For a row that is gone after an event the worker writes a ``forget`` (G12).
"""

from __future__ import annotations

from hashlib import sha256
from typing import Final

from refold.core.answering import apply_aside, take_note
from refold.core.dedup import ring_find, ring_seq
from refold.core.envelope import Envelope
from refold.core.events import (
    GenerationAttempted,
    GenerationEvent,
    GenerationFailed,
    GenerationFinished,
    GenerationLeaseRenewed,
    GenerationStarted,
    GenerationStopped,
)
from refold.core.jsontext import is_valid_json
from refold.core.limits import (
    ENDED_GENERATIONS_MAX,
    ERROR_CODE_BYTES_MAX,
    FINISH_REASON_BYTES_MAX,
    GENERATION_NAME_BYTES_MAX,
    LEASE_MS_MAX,
    OPEN_GENERATIONS_MAX,
    PARAMS_BYTES_MAX,
)
from refold.core.messages import apply_message, bad_id, bad_reference, rule_message
from refold.core.progress import CHAIN_BYTES, Progress
from refold.core.rulings import Duplicate, Rejected
from refold.core.session import Generation, Session
from refold.core.texts import clip

MODES: Final = ("restart", "continue")
DURABILITIES: Final = ("strict", "relaxed")

_HEX: Final = frozenset("0123456789abcdef")


def is_open(row: Generation) -> bool:
    return row.state in ("started", "stopping")


def open_generations(session: Session) -> list[Generation]:
    """The rows that have not ended, in the order they were started."""
    return [row for row in session.generations.values() if is_open(row)]


# --- decide --------------------------------------------------------------------------------------------


def rule_generation(session: Session, event: GenerationEvent, now_ms: int) -> Duplicate | Rejected | None:
    """``now_ms``: session time if the event is accepted."""
    if isinstance(event, GenerationStarted):
        return _rule_started(session, event)
    row = session.generations.get(event.generation_id)
    if row is None:
        return Rejected("unknown_generation", "no generation with this id is held")
    if isinstance(event, GenerationAttempted):
        return _rule_attempted(row, event, now_ms)
    if isinstance(event, GenerationLeaseRenewed):
        return _rule_renewed(row, event)
    if isinstance(event, GenerationFinished):
        return _rule_finished(session, row, event)
    if isinstance(event, GenerationFailed):
        return _rule_failed(row, event)
    if row.state == "stopping":
        return Duplicate(0)
    return None if is_open(row) else _ended(row)


def _ended(row: Generation) -> Rejected:
    return Rejected("already_final", f"the generation is {row.state} since seq {row.updated_seq}")


def _bad_name(value: str, name: str) -> Rejected | None:
    wrong = bad_id(value, name)
    if wrong is None and len(value.encode()) > GENERATION_NAME_BYTES_MAX:
        return Rejected("bad_id", f"{name} is longer than {GENERATION_NAME_BYTES_MAX} bytes")
    return wrong


def _rule_lease(holder: str, lease_ms: int) -> Rejected | None:
    wrong = _bad_name(holder, "holder")
    if wrong is None and not 0 <= lease_ms <= LEASE_MS_MAX:
        return Rejected("bad_value", f"lease_ms must be 0 to {LEASE_MS_MAX}")
    return wrong


def _rule_started(session: Session, event: GenerationStarted) -> Duplicate | Rejected | None:
    wrong = (
        _bad_name(event.generation_id, "the generation's id")
        or _bad_name(event.message_id, "message_id")
        or _bad_name(event.generator, "generator")
        or _rule_lease(event.holder, event.lease_ms)
    )
    if wrong is None and event.reply_to:
        wrong = bad_reference(event.reply_to, "reply_to")
    if wrong is not None:
        return wrong
    if "#" in event.generation_id:
        return Rejected("bad_id", "the generation's id has a #, which separates it from the session in a key")
    if event.reply_to == event.message_id:
        return Rejected("bad_value", "a message cannot answer itself")
    if event.durability not in DURABILITIES:
        return Rejected("bad_value", "durability must be strict or relaxed")
    params = event.params
    if params is not None:
        if len(params.encode()) > PARAMS_BYTES_MAX:
            return Rejected("too_large", f"the parameters are longer than {PARAMS_BYTES_MAX} bytes")
        if not is_valid_json(params):
            return Rejected("bad_json", "the parameters are not valid JSON")
    row = session.generations.get(event.generation_id)
    if row is not None:
        same = (row.message_id, row.reply_to, row.generator, row.params_digest, row.durability) == (
            event.message_id,
            event.reply_to,
            event.generator,
            _digest(params),
            event.durability,
        )
        # Holder and lease are who asks, not what is asked: a second caller with the same key follows.
        if same:
            return Duplicate(row.started_seq)
        return Rejected("conflict", f"the generation id was used for another one at seq {row.started_seq}")
    return _rule_message_id(session, event.message_id) or _rule_room(session)


def _rule_message_id(session: Session, message_id: str) -> Rejected | None:
    """The message's id is free: not in the session, nor promised to another open generation."""
    known = session.held.get(message_id)
    seq = 0 if known is None else known.seq
    at = ring_find(session.message_ids, message_id)
    if at >= 0:
        seq = ring_seq(session.message_ids, at, session.seq)
    if seq:
        return Rejected("conflict", f"the message id was used at seq {seq}")
    for row in session.generations.values():
        if row.message_id == message_id and is_open(row):
            return Rejected("conflict", f"the message id is another generation's since seq {row.started_seq}")
    return None


def _rule_room(session: Session) -> Rejected | None:
    if len(open_generations(session)) < OPEN_GENERATIONS_MAX:
        return None
    return Rejected("too_many_open_generations", f"{OPEN_GENERATIONS_MAX} generations are open, the limit")


def _digest(params: str | None) -> str | None:
    return None if params is None else sha256(params.encode()).hexdigest()


def _rule_attempted(row: Generation, event: GenerationAttempted, now_ms: int) -> Duplicate | Rejected | None:
    wrong = _rule_lease(event.holder, event.lease_ms)
    if wrong is not None:
        return wrong
    if event.mode not in MODES:
        return Rejected("bad_value", "mode must be restart or continue")
    if not is_open(row):
        return _ended(row)
    own = event.holder == row.holder
    if event.attempt == row.attempt and own:
        return Duplicate(0)
    if event.attempt < row.attempt:
        return Rejected("stale_holder", f"the generation is at attempt {row.attempt}")
    if event.attempt > row.attempt + 1:
        return Rejected("illegal_transition", f"the next attempt is {row.attempt + 1}, not {event.attempt}")
    until = row.lease_until_ms
    if event.attempt == row.attempt or not (own or until is None or until <= now_ms):
        return Rejected("lease_held", f"attempt {row.attempt} is another's until session time {until}")
    return None


def _rule_renewed(row: Generation, event: GenerationLeaseRenewed) -> Rejected | None:
    wrong = _rule_lease(event.holder, event.lease_ms)
    if wrong is None and event.provider_response_id is not None:
        wrong = bad_id(event.provider_response_id, "the provider's response id")
    if wrong is not None:
        return wrong
    if not is_open(row):
        return _ended(row)
    if (event.attempt, event.holder) != (row.attempt, row.holder):
        return Rejected("stale_holder", f"attempt {row.attempt} is another holder's")
    return None


def _rule_attempt(row: Generation, attempt: int) -> Rejected | None:
    if attempt == row.attempt:
        return None
    return Rejected("stale_holder", f"the generation is at attempt {row.attempt}, not {attempt}")


def _rule_finished(
    session: Session, row: Generation, event: GenerationFinished
) -> Duplicate | Rejected | None:
    if not is_open(row):
        same = row.state == "finished" and (row.last_seq, row.sha256) == (event.last_seq, event.sha256)
        return Duplicate(row.updated_seq) if same else _ended(row)
    wrong = _rule_attempt(row, event.attempt) or _rule_finish(row, event)
    if wrong is None:
        wrong = _rule_batches(session, row, event, event.progress)
    if wrong is not None:
        return wrong
    found = rule_message(session, event.message, settling=True)
    # Somebody appended the very message: only the row is left to close.
    return None if isinstance(found, Duplicate) else found


def _rule_finish(row: Generation, event: GenerationFinished) -> Rejected | None:
    if event.last_seq < 0 or event.length < 0:
        return Rejected("bad_value", "last_seq and length must not be negative")
    if len(event.sha256) != 64 or not _HEX.issuperset(event.sha256):
        return Rejected("bad_value", "sha256 must be 64 hex digits in lower case")
    if event.chain is not None and len(event.chain) not in (0, CHAIN_BYTES):
        return Rejected("bad_value", f"chain must be {CHAIN_BYTES} bytes long")
    message = event.message
    if (message.message_id, message.parent_id, message.role) != (row.message_id, row.reply_to, "assistant"):
        return Rejected(
            "bad_value",
            "the message must have the generation's message_id, its reply_to as parent, role assistant",
        )
    return None


def _is_former(session: Session, row: Generation, progress: Progress) -> bool:
    """Whether the progress is of a generation with the same id from before the session was deleted. Seqs
    begin anew then, and the new session is no older than its deletion, which came after that start."""
    return progress.started_ms < session.created_ms or progress.started_seq not in (0, row.started_seq)


def _rule_batches(
    session: Session, row: Generation, event: GenerationFinished, progress: Progress | None
) -> Rejected | None:
    """G10. A progress that has ended, or is of another attempt or another generation, has not seen this
    attempt's begin yet."""
    if (
        progress is None
        or progress.ended
        or _is_former(session, row, progress)
        or progress.attempt != row.attempt
        or progress.produced < event.last_seq
    ):
        return Rejected("batches_missing", f"batch {event.last_seq} of attempt {row.attempt} is not there")
    if progress.produced > event.last_seq:
        # Batches after the last one of the message (it was stopped there): the digest there is not kept.
        return None
    if progress.length != event.length:
        return Rejected("digest_mismatch", f"the batches have {progress.length} bytes of text")
    if event.chain is not None and progress.chain != event.chain:
        return Rejected("digest_mismatch", "the chain of the batches is another one")
    return None


def _rule_failed(row: Generation, event: GenerationFailed) -> Duplicate | Rejected | None:
    if not event.code:
        return Rejected("bad_value", "code is empty")
    if not is_open(row):
        same = row.state == "failed" and (row.attempt, row.error_code) == (
            event.attempt,
            clip(event.code, ERROR_CODE_BYTES_MAX),
        )
        return Duplicate(row.updated_seq) if same else _ended(row)
    return _rule_attempt(row, event.attempt)


# --- evolve --------------------------------------------------------------------------------------------


def apply_generation(session: Session, seq: int, time_ms: int, env: Envelope, event: GenerationEvent) -> None:
    session.enc_generations = None
    if isinstance(event, GenerationStarted):
        row = Generation(event.generation_id, event.message_id, seq)
        session.generations[event.generation_id] = row
        row.holder = event.holder
        row.lease_until_ms = time_ms + event.lease_ms
        row.reply_to = event.reply_to
        row.generator = event.generator
        row.params_digest = _digest(event.params)
        row.durability = event.durability
        return
    row = session.generations[event.generation_id]
    row.updated_seq = seq
    if isinstance(event, GenerationAttempted):
        row.attempt = event.attempt
        row.mode = event.mode
        row.holder = event.holder
        row.lease_until_ms = time_ms + event.lease_ms
        if event.mode == "restart":
            row.provider_response_id = None
    elif isinstance(event, GenerationLeaseRenewed):
        row.lease_until_ms = time_ms + event.lease_ms
        if event.provider_response_id is not None:
            row.provider_response_id = event.provider_response_id
    elif isinstance(event, GenerationStopped):
        row.state = "stopping"
    elif isinstance(event, GenerationFinished):
        row.state = "finished"
        row.last_seq = event.last_seq
        row.length = event.length
        row.sha256 = event.sha256
        row.finish_reason = clip(event.finish_reason, FINISH_REASON_BYTES_MAX)
        _close(session, row)
        aside = take_note(session, row) if session.aliases else None
        if not isinstance(rule_message(session, event.message, settling=True), Duplicate):
            if aside is None:
                apply_message(session, seq, time_ms, env, event.message)
            else:
                apply_aside(session, seq, time_ms, env, event.message, aside)
    elif isinstance(event, GenerationFailed):
        row.state = "failed"
        row.error_code = clip(event.code, ERROR_CODE_BYTES_MAX)
        if session.aliases:
            take_note(session, row)
        _close(session, row)


def _close(session: Session, row: Generation) -> None:
    row.holder = row.lease_until_ms = row.provider_response_id = None
    ended = sorted(
        (r for r in session.generations.values() if not is_open(r)), key=lambda ended: ended.updated_seq
    )
    for old in ended[: max(0, len(ended) - ENDED_GENERATIONS_MAX)]:
        del session.generations[old.generation_id]
