"""ContextSummarized: a summary stands for the beginning of the active path, up to a named message.

W5  A summary names the message it covers through. It is accepted when that message is on the active path and
    the path may be cut after it (W2), and when it covers no less than the one in force. Its messages leave
    ``recent`` in the same event, so no message is in both. It closes a path whose beginning was unknown
    (B3): whoever wrote it had read the journal.
"""

from __future__ import annotations

from refold.core.context import drop_prefix, is_legal_cut, trail_seqs, trim
from refold.core.dedup import SEQ_MASK, ring_find, ring_seq
from refold.core.events import ContextSummarized
from refold.core.limits import SUMMARY_BYTES_MAX
from refold.core.rulings import Rejected
from refold.core.session import Session, Summary
from refold.core.tree import resolve


def _position(session: Session, message_id: str) -> tuple[int, int]:
    """(messages of ``recent`` covered, trimmed ones after the named one); (-1, -1): not on the path."""
    message_id = resolve(session, message_id)
    for at, message in enumerate(session.recent):
        if message.id == message_id:
            return at + 1, 0
    if message_id == session.trunk_id:
        return (0, 0) if message_id else (-1, -1)
    at = ring_find(session.message_ids, message_id)
    if at >= 0:
        seq = ring_seq(session.message_ids, at, session.seq)
        trail = trail_seqs(session)
        if seq & SEQ_MASK in trail:
            return 0, len(trail) - 1 - trail.index(seq & SEQ_MASK)
    return -1, -1


def rule_summary(session: Session, event: ContextSummarized) -> Rejected | None:
    if not event.text.strip():
        return Rejected("bad_summary", "the text is empty: a failed summary must not be appended")
    if len(event.text.encode()) > SUMMARY_BYTES_MAX:
        return Rejected("too_large", f"the text is longer than {SUMMARY_BYTES_MAX} bytes")
    covered, behind = _position(session, event.through_message_id)
    if covered < 0:
        return Rejected("unknown_message", "the message named is not on the active path, or too far back")
    if 0 < covered < len(session.recent) and not is_legal_cut(session.recent, covered):
        return Rejected("bad_summary", "it would part a call from its result: end it where a group ends")
    if session.summary_active and covered == 0 and behind > session.uncovered:
        return Rejected("bad_summary", "the summary in force covers more")
    return None


def apply_summary(session: Session, seq: int, event: ContextSummarized) -> None:
    covered, behind = _position(session, event.through_message_id)
    if covered > 0:
        drop_prefix(session, covered)
    session.uncovered = behind
    low = trail_seqs(session)[-1 - behind] if session.trail else session.through & SEQ_MASK
    through_seq = seq - ((seq - low) & SEQ_MASK)
    session.summary = Summary(event.text, event.through_message_id, through_seq, seq)
    session.summary_active = True
    session.complete = True
    session.enc_context = None
    trim(session)
