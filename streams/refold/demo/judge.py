"""The comparisons at the end. Each difference is a line with the session's name."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from refold.demo.dataset import Conversation
from refold.demo.player import Played
from refold.demo.reference import normalised
from refold.ops.refolding import Refolder
from refold.ops.verify.readback import Record
from refold.wire.journal import decode_journal

Topic = Mapping[int, Sequence[Record]]


@dataclass(slots=True)
class Verdict:
    """``lost``/``doubled`` count events and operations; ``mismatches`` counts sessions."""

    sessions: int = 0
    mismatches: int = 0
    lost: int = 0
    doubled: int = 0
    events: int = 0
    operations: int = 0
    differences: list[str] = field(default_factory=list)

    @property
    def clean(self) -> bool:
        return not (self.mismatches or self.lost or self.doubled)


def judge(
    tenant: str,
    conversations: Sequence[Conversation],
    played: Mapping[str, Played],
    reference: Mapping[str, bytes],
    journal: Topic,
    state: Topic,
) -> Verdict:
    """Compare every session: events, operations, stored state = fold(journal) = the uninterrupted run's."""
    refolder = Refolder()
    ids: dict[bytes, list[str]] = defaultdict(list)
    for records in journal.values():
        for record in records:
            key, value = record.key or b"", record.value or b""
            refolder.feed(key, value)
            ids[key].append(decode_journal(value).env.event_id)
    stored = {record.key or b"": record.value for records in state.values() for record in records}
    verdict = Verdict(sessions=len(conversations))
    for conversation in conversations:
        key = f"{tenant}/{conversation.session}".encode()
        run = played[conversation.session]
        wrong = _events(verdict, [receipt.event_id for receipt in run.receipts], ids[key])
        wrong += _operations(verdict, conversation, run)
        last = stored.get(key)
        if last is None:
            wrong.append("no stored state")
        else:
            if last != refolder.encoded(key):
                wrong.append("stored state is not fold(journal), byte for byte")
            if normalised(last) != normalised(reference[conversation.session]):
                wrong.append("stored state is not the uninterrupted run's")
        if wrong:
            verdict.mismatches += 1
            verdict.differences.append(f"{conversation.session}: {'; '.join(wrong)}")
    return verdict


def _events(verdict: Verdict, sent: Sequence[str], journal: Sequence[str]) -> list[str]:
    """Every acknowledged event in the journal once, in order."""
    verdict.events += len(sent)
    if list(sent) == list(journal):
        return []
    lost = (Counter(sent) - Counter(journal)).total()
    doubled = (Counter(journal) - Counter(sent)).total()
    verdict.lost += lost
    verdict.doubled += doubled
    return [f"{lost} events lost, {doubled} too many" if lost or doubled else "events out of order"]


def _operations(verdict: Verdict, conversation: Conversation, run: Played) -> list[str]:
    """What the simulators really ran is the expected list, in order."""
    verdict.operations += len(run.ledger)
    if tuple(run.ledger) == conversation.calls:
        return []
    lost = (Counter(conversation.calls) - Counter(run.ledger)).total()
    doubled = (Counter(run.ledger) - Counter(conversation.calls)).total()
    verdict.lost += lost
    verdict.doubled += doubled
    return [
        f"{lost} operations not run, {doubled} too many" if lost or doubled else "operations out of order"
    ]
