"""The comparisons at the end: those of ``refold verify effects``, summed up per session."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from refold.demo.dataset import Conversation
from refold.ops.effects import judge as effects
from refold.ops.effects.ledger import Entry
from refold.ops.effects.told import Told
from refold.ops.verify.readback import Record

Topic = Mapping[int, Sequence[Record]]


@dataclass(slots=True)
class Verdict:
    """``lost``/``doubled`` count operations and messages; ``mismatches`` counts sessions, whatever is wrong.
    ``unknown``, ``not_done``, ``done_by_lookup``: what became of calls that were left without an
    answer, because their agent died or the gateway lost the answer or turned the request away.
    """

    sessions: int = 0
    mismatches: int = 0
    lost: int = 0
    doubled: int = 0
    events: int = 0
    operations: int = 0
    unknown: int = 0
    not_done: int = 0
    done_by_lookup: int = 0
    differences: list[str] = field(default_factory=list)

    @property
    def clean(self) -> bool:
        return not (self.mismatches or self.lost or self.doubled)


def judge(
    tenant: str,
    conversations: Sequence[Conversation],
    ledger: Iterable[Entry],
    journal: Topic,
    state: Topic,
    review: Topic,
    reference: Mapping[str, Told],
) -> Verdict:
    """Compare every session: operations, conversation, stored state = fold(journal), reviews."""
    found = effects.judge(tenant, conversations, ledger, journal, state, review, reference)
    return Verdict(
        sessions=len(conversations),
        mismatches=len(found.wrong),
        lost=found.lost + found.messages_lost,
        doubled=found.executed_twice + found.messages_doubled,
        events=found.events,
        operations=found.operations,
        unknown=found.unknown,
        not_done=found.not_done,
        done_by_lookup=found.done_by_lookup,
        differences=found.differences,
    )
