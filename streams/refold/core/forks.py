"""SessionForked: a session begins as a copy of another one of its tenant. Rule O1, see ``forkbase``.

It is the first event of its session or refused; the same fork again is a duplicate. The source hears nothing
of it: whatever happens to it afterwards, deletion included, does not change the fork. Content that no state
holds is read from the source's journal, under the link.
"""

from __future__ import annotations

from refold.core.envelope import SessionLink
from refold.core.forkbase import fault_of, moved, moved_low
from refold.core.limits import DEDUP_ENTRY_BYTES
from refold.core.messages import bad_id
from refold.core.operationevents import SessionForked
from refold.core.policystate import Reduced
from refold.core.rulings import Duplicate, Rejected
from refold.core.session import Config, Fact, Session, Summary, Trunk


def rule_forked(session: Session, event: SessionForked) -> Duplicate | Rejected | None:
    wrong = bad_id(event.source, "source")
    if wrong is not None:
        return wrong
    if session.exists:
        link = session.link
        if link is not None and (link.kind, link.session, link.seq) == (
            "fork",
            event.source,
            event.source_seq,
        ):
            return Duplicate(1)
        return Rejected("conflict", "the session exists already: a fork begins a new one")
    base = event.base
    if event.source == session.session:
        return Rejected("bad_value", "a session is not its own fork")
    if (base.tenant, base.session, base.seq) != (session.tenant, event.source, event.source_seq):
        return Rejected("bad_value", "base is not the source's state at source_seq")
    fault = fault_of(base)
    return None if fault is None else Rejected("bad_value", f"base is not valid: {fault}")


def apply_forked(session: Session, seq: int, event: SessionForked) -> None:
    base = event.base
    shift = event.source_seq + 1
    session.link = SessionLink("fork", event.source, event.source_seq)
    session.opened_seq = seq if base.opened_seq else 0
    session.window_messages = base.window_messages
    session.window_bytes = base.window_bytes
    session.hold_for_summary = base.hold_for_summary
    session.policy = base.policy
    _tree(session, base, shift)
    for name, fact in base.facts.items():
        session.facts[name] = Fact(fact.value, fact.seq - shift, fact.size)
    session.facts_bytes = base.facts_bytes
    config = base.config
    if config is not None:
        session.config = Config(config.digest, config.json, config.seq - shift)
    for name, part in base.reduced.items():
        kept = session.reduced[name] = Reduced(part.name, part.version, part.seq - shift, part.state)
        kept.status = part.status
        kept.error = part.error
    session.enc_settings = session.enc_context = session.enc_branches = session.enc_rest = None
    session.enc_memory = session.enc_tail = None


def _tree(session: Session, base: Session, shift: int) -> None:
    copies = {message.id: moved(message, shift) for message in base.held.values()}
    session.held = copies
    session.system = [copies[m.id] for m in base.system]
    session.system_bytes = base.system_bytes
    session.recent = [copies[m.id] for m in base.recent]
    session.recent_bytes = base.recent_bytes
    session.branch_messages = {name: copies[name] for name in base.branch_messages}
    session.branch_bytes = base.branch_bytes
    session.answering = base.answering
    session.head = base.head
    session.trunk_id = base.trunk_id
    session.through = base.through - shift if base.through else 0
    session.complete = base.complete
    session.uncovered = base.uncovered
    trail = base.trail
    session.trail = b"".join([moved_low(trail[at : at + 4], shift) for at in range(0, len(trail), 4)])
    for name, trunk in base.trunks.items():
        session.trunks[name] = Trunk(
            trunk.through - shift if trunk.through else 0,
            trunk.uncovered,
            trunk.complete,
            trunk.summary_seq - shift if trunk.summary_seq else 0,
        )
    session.aliases = dict(base.aliases)
    summary = base.summary
    if summary is not None:
        session.summary = Summary(
            summary.text, summary.through_message_id, summary.through_seq - shift, summary.seq - shift
        )
    session.summary_active = base.summary_active
    ring = base.message_ids
    session.message_ids = b"".join(
        [
            ring[at : at + 12] + moved_low(ring[at + 12 : at + DEDUP_ENTRY_BYTES], shift)
            for at in range(0, len(ring), DEDUP_ENTRY_BYTES)
        ]
    )


def source_seq_of(seq: int, source_seq: int) -> int:
    """Seq in the source of what has ``seq`` (below 0) in a fork made at ``source_seq``."""
    return seq + source_seq + 1
