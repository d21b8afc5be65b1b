"""What a fork begins with: another session's state, stripped, checked and moved to its own seqs.

O1  A fork has the source's messages, branches, summary, facts, configuration, settings, policy and reducers'
    parts as of a seq. It has nothing that acts: calls, waiting results, generations, runs, children, the
    timer and the memory of producers stay with the source, and so does its link.

What came from the source has *negative* seqs in the fork: ``seq - (source_seq + 1)``. So nothing of it is
taken for an event of the fork, order is kept, and ``seq + source_seq + 1`` is its place in the source's
journal, where content that no state holds still is. A fork of a fork moves them once more.

The bytes of a base come from anybody, so everything that the fold keeps inside its limits is looked at.
"""

from __future__ import annotations

from hashlib import sha256
from typing import Final

from refold.core import reducers
from refold.core.answering import NOTE
from refold.core.context import stub_size
from refold.core.dedup import SEQ_MASK
from refold.core.invariants import well_formed
from refold.core.jsontext import is_valid_json
from refold.core.limits import (
    ANSWERS_MAX,
    CONFIG_BYTES_MAX,
    DEDUP_ENTRY_BYTES,
    FACT_BYTES_MAX,
    ID_BYTES_MAX,
    MESSAGE_INLINE_BYTES_MAX,
    REDUCED_ERROR_BYTES_MAX,
    REDUCED_PARTS_MAX,
    ROLE_BYTES_MAX,
    SEQ_DISTANCE_MAX,
    SUMMARY_BYTES_MAX,
    WINDOW_BYTES_MAX,
    WINDOW_BYTES_MIN,
    WINDOW_MESSAGES_MAX,
    WINDOW_MESSAGES_MIN,
)
from refold.core.messages import bad_id, bad_reference
from refold.core.messagestate import Message
from refold.core.policy import rule_policy
from refold.core.policystate import PolicyChange, Reduced
from refold.core.session import Session
from refold.errors import InvariantViolation

_HEX: Final = frozenset("0123456789abcdef")


def strip(session: Session) -> None:
    """Leave of a session what a fork begins with."""
    for orphan in session.orphans:
        del session.held[orphan.message.id]
    session.orphans = []
    session.orphans_bytes = 0
    session.calls = {}
    session.calls_bytes = session.open_calls = 0
    session.generations = {}
    session.runs = {}
    session.runs_bytes = 0
    session.children = []
    session.timer_ms = session.timer_seq = session.idle_since_ms = 0
    session.producers = {}
    session.dedup_floor_ms = None
    session.event_ids = b""
    session.aliases = {k: v for k, v in session.aliases.items() if not k.startswith(NOTE)}
    session.link = None
    session.status = session.resume_status = "open"
    session.status_seq = session.parked = 0
    session.enc_rest = session.enc_memory = session.enc_generations = None
    session.enc_runs = session.enc_tail = None


def fault_of(base: Session) -> str | None:
    """Why these are no contents for a fork; None when they are."""
    acting = (
        base.orphans
        or base.calls
        or base.generations
        or base.runs
        or base.children
        or base.producers
        or base.event_ids
        or base.link
        or base.timer_ms
    )
    if acting or base.status != "open" or base.parked:
        return "it holds calls, generations, runs, children, a link or de-duplication, or is not open"
    if not 1 <= base.seq <= SEQ_DISTANCE_MAX:
        return "its seq is none that a session reaches"
    try:
        well_formed(base)
    except InvariantViolation as broken:
        return str(broken).split(":")[0]
    for message in base.held.values():
        if _bad_message(message, base.seq):
            return f"the message of seq {message.seq} is not one that a session holds"
    names = [*base.trunks, *base.aliases, *base.aliases.values(), base.trunk_id]
    if any(bad_reference(name, "place") for name in names if name):
        return "a place in its tree is no message id"
    if len(base.message_ids) % DEDUP_ENTRY_BYTES or len(base.trail) % 4:
        return "its memory of messages is cut off"
    covered = [(base.through, base.uncovered), *((t.through, t.uncovered) for t in base.trunks.values())]
    if any(
        not _is_past(through, base.seq) or not 0 <= uncovered <= SEQ_DISTANCE_MAX
        for through, uncovered in covered
    ) or not all(_is_past(trunk.summary_seq, base.seq) for trunk in base.trunks.values()):
        return "what its window covers is from the future"
    return _bad_values(base) or _bad_parts(base)


def _is_past(seq: int, newest: int) -> bool:
    """Whether this may be the seq of something in a session at ``newest``, below 0 where it was forked."""
    return -SEQ_DISTANCE_MAX < seq <= newest


def _bad_message(message: Message, seq: int) -> bool:
    body = message.body
    return bool(
        bad_reference(message.id, "message_id")
        or (message.parent and bad_reference(message.parent, "parent"))
        or len((message.actor or "").encode()) > ID_BYTES_MAX  # any text that short is an actor's id
        or not message.role
        or len(message.role.encode()) > ROLE_BYTES_MAX
        or not _is_past(message.seq, seq)
        or len(message.answers) > ANSWERS_MAX
        or any(abs(answered) > SEQ_DISTANCE_MAX for answered in message.answers)
        or (body is not None and len(body) > MESSAGE_INLINE_BYTES_MAX)
        or (body is None and (len(message.sha256) != 64 or not _HEX.issuperset(message.sha256)))
        or (body is None and (message.length < 0 or message.size != stub_size(message)))
    )


def _bad_values(base: Session) -> str | None:
    for name, fact in base.facts.items():
        wrong = bad_id(name, "fact") or fact.size > FACT_BYTES_MAX or not is_valid_json(fact.value)
        if wrong or not _is_past(fact.seq, base.seq):
            return "a fact is none that a session holds"
    config = base.config
    if config is not None:
        data = config.json.encode()
        fits = len(data) <= CONFIG_BYTES_MAX and is_valid_json(config.json) and _is_past(config.seq, base.seq)
        if not fits or sha256(data).hexdigest() != config.digest:
            return "its configuration is not valid"
    summary = base.summary
    if summary is not None and (
        bad_reference(summary.through_message_id, "through_message_id")
        or len(summary.text.encode()) > SUMMARY_BYTES_MAX
        or not _is_past(summary.seq, base.seq)
        or not _is_past(summary.through_seq, summary.seq)
    ):
        return "its summary is not valid"
    if not (
        WINDOW_MESSAGES_MIN <= base.window_messages <= WINDOW_MESSAGES_MAX
        and WINDOW_BYTES_MIN <= base.window_bytes <= WINDOW_BYTES_MAX
    ):
        return "its window settings are out of range"
    if base.policy is not None and rule_policy(PolicyChange(*base.policy)) is not None:
        return "its policy is not valid"
    return None


def _bad_parts(base: Session) -> str | None:
    if len(base.reduced) > REDUCED_PARTS_MAX or reducers.states_bytes(base) > reducers.STATES_BYTES_MAX:
        return "its reducers' parts are above the limit"
    for part in base.reduced.values():
        named = part.name and len(part.name.encode()) <= reducers.NAME_BYTES_MAX and part.version >= 1
        short = len(part.state) <= reducers.STATE_BYTES_MAX
        short = short and len((part.error or "").encode()) <= REDUCED_ERROR_BYTES_MAX
        if not named or not short or not _is_past(part.seq, base.seq) or not _is_state(part):
            return "a reducer's part is not valid"
    return None


def _is_state(part: Reduced) -> bool:
    if part.state == reducers.NOTHING:
        return part.status == "quarantined"
    return reducers.is_state(part.state)


def moved(message: Message, shift: int) -> Message:
    """A message of the source as the fork holds it."""
    made = Message(
        message.id,
        message.seq - shift,
        message.time_ms,
        message.role,
        message.parent,
        message.body,
        message.size,
        message.turn_start,
        message.actor,
    )
    made.from_tool_event = message.from_tool_event
    made.answers = tuple([seq - shift for seq in message.answers])
    made.length = message.length
    made.sha256 = message.sha256
    return made


def moved_low(low: bytes, shift: int) -> bytes:
    """The low 32 bits of a seq, moved."""
    return ((int.from_bytes(low, "little") - shift) & SEQ_MASK).to_bytes(4, "little")
