"""The comparisons at the end. Each difference is a line with the session's name; nothing is averaged away.

Two witnesses that know nothing of each other: the gateway's ledger against the script (what ran, in order),
and the stored state against the journal folded again (what is remembered). They meet in the results: what the
journal says a call returned must be what the ledger says it returned.
"""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from refold.core.session import Session
from refold.demo.dataset import Conversation
from refold.ops.effects.ledger import Entry
from refold.ops.effects.told import Told
from refold.ops.refolding import Refolder
from refold.ops.verify.readback import Record

Topic = Mapping[int, Sequence[Record]]

#: Lines kept to show; the counts go on.
DIFFERENCES_SHOWN_MAX: Final = 50


@dataclass(slots=True)
class Verdict:
    """``executed_twice``/``lost`` count operations, ``unknown_not_in_review`` calls, the others sessions."""

    executed_twice: int = 0
    lost: int = 0
    unknown_not_in_review: int = 0
    ledger_mismatches: int = 0
    state_mismatches: int = 0
    operations: int = 0
    events: int = 0
    unknown: int = 0
    not_done: int = 0
    done_by_lookup: int = 0
    messages_lost: int = 0
    messages_doubled: int = 0
    differences: list[str] = field(default_factory=list)
    #: Sessions with any difference.
    wrong: set[str] = field(default_factory=set)

    @property
    def clean(self) -> bool:
        return not (
            self.executed_twice
            or self.lost
            or self.unknown_not_in_review
            or self.ledger_mismatches
            or self.state_mismatches
        )

    def differ(self, kind: str, session: str, text: str) -> None:
        self.wrong.add(session)
        text = f"{kind} {session}: {text}"
        if len(self.differences) < DIFFERENCES_SHOWN_MAX:
            self.differences.append(text)


def judge(
    tenant: str,
    conversations: Sequence[Conversation],
    ledger: Iterable[Entry],
    journal: Topic,
    state: Topic,
    review: Topic,
    reference: Mapping[str, Told] | None,
) -> Verdict:
    """All comparisons. ``reference``: session -> what an uninterrupted run told; ``None`` when a user's agent
    played, whose words nobody knows in advance.
    """
    verdict = Verdict()
    executed: dict[str, list[Entry]] = defaultdict(list)
    looked_up: set[str] = set()
    for entry in ledger:
        if entry.what == "executed":
            executed[entry.session].append(entry)
        elif entry.what == "lookup" and entry.result == "done":
            looked_up.add(entry.key.rpartition("/")[0])
    refolder, told = _read_journal(journal)
    stored = {record.key or b"": record.value for records in state.values() for record in records}
    reviews = _read_reviews(review)
    for conversation in conversations:
        session = conversation.session
        key = f"{tenant}/{session}".encode()
        said = told.get(key, Told())
        verdict.operations += len(executed[session])
        verdict.events += said.events
        verdict.unknown += len(said.unknown)
        verdict.not_done += len(said.not_done)
        verdict.done_by_lookup += len(said.reconciled & looked_up)
        _judge_ledger(verdict, conversation, executed[session])
        _judge_reviews(verdict, session, key, said, refolder.sessions.get(key), reviews)
        wrong = _state(key, stored.get(key), refolder)
        if reference is not None:
            uninterrupted = reference[session]
            said_once, wanted = Counter(said.spoken), Counter(uninterrupted.spoken)
            verdict.messages_lost += (wanted - said_once).total()
            verdict.messages_doubled += (said_once - wanted).total()
            wrong += _conversation(said, uninterrupted, executed[session], refolder.sessions.get(key))
        if wrong:
            verdict.state_mismatches += 1
            verdict.differ("state", session, "; ".join(wrong))
    return verdict


def _read_journal(journal: Topic) -> tuple[Refolder, dict[bytes, Told]]:
    refolder = Refolder()
    told: dict[bytes, Told] = defaultdict(Told)
    for records in journal.values():
        for record in records:
            key, value = record.key or b"", record.value or b""
            refolder.feed(key, value)
            told[key].note(value)
    return refolder, told


def _read_reviews(review: Topic) -> dict[bytes, list[bool]]:
    """key -> for each record of the review topic whether it was an item (else: its tombstone)."""
    found: dict[bytes, list[bool]] = defaultdict(list)
    for records in review.values():
        for record in records:
            found[record.key or b""].append(record.value is not None)
    return found


def _judge_ledger(verdict: Verdict, conversation: Conversation, executed: Sequence[Entry]) -> None:
    """What really ran is the script, in order."""
    expected = [(call.tool, plain(json.loads(call.arguments))) for call in conversation.calls]
    ran = [(entry.tool, plain(entry.arguments)) for entry in executed]
    if ran == expected:
        return
    twice = (Counter(ran) - Counter(expected)).total()
    lost = (Counter(expected) - Counter(ran)).total()
    verdict.executed_twice += twice
    verdict.lost += lost
    verdict.ledger_mismatches += 1
    first = next(
        (i for i, (a, b) in enumerate(zip(expected, ran, strict=False)) if a != b),
        min(len(expected), len(ran)),
    )
    what = f"{twice} too many, {lost} not run" if twice or lost else "out of order"
    place = f"first difference at call {first + 1} of {len(expected)}"
    verdict.differ("ledger", conversation.session, f"operations {what}; {place}")


def plain(arguments: Mapping[str, Any]) -> str:
    """Arguments as a comparable text. One left out and one that is null are the same to every tool here."""
    given = {name: value for name, value in arguments.items() if value is not None}
    return json.dumps(given, sort_keys=True, ensure_ascii=False)


def _judge_reviews(
    verdict: Verdict,
    session: str,
    key: bytes,
    said: Told,
    folded: Session | None,
    reviews: Mapping[bytes, Sequence[bool]],
) -> None:
    """Rule R1: as many items as unknown outcomes, and open exactly while the call is unknown."""
    for operation, times in Counter(said.unknown).items():
        records = reviews.get(key + b"#" + operation.encode(), ())
        call = None if folded is None else folded.calls.get(operation)
        open_now = call is not None and call.state == "unknown"
        wrong = []
        if sum(records) != times:
            wrong.append(f"{times} times unknown, {sum(records)} review items")
        if records and records[-1] != open_now:
            wrong.append("its review item is open" if records[-1] else "its review item is gone")
        if wrong:
            verdict.unknown_not_in_review += 1
            verdict.differ("review", session, f"call {operation}: {'; '.join(wrong)}")


def _state(key: bytes, last: bytes | None, refolder: Refolder) -> list[str]:
    if last is None:
        return ["no stored state"]
    if last != refolder.encoded(key):
        return ["stored state is not fold(journal), byte for byte"]
    return []


def _conversation(
    said: Told, uninterrupted: Told, executed: Sequence[Entry], folded: Session | None
) -> list[str]:
    """The conversation as an uninterrupted run leaves it: every message once, in order, every call done,
    every result what the gateway answered first."""
    wrong = []
    if said.spoken != uninterrupted.spoken:
        pairs = enumerate(zip(said.spoken, uninterrupted.spoken, strict=False), 1)
        first = next(
            (n for n, (a, b) in pairs if a != b), min(len(said.spoken), len(uninterrupted.spoken)) + 1
        )
        wrong.append(
            f"{len(said.spoken)} messages and results, {len(uninterrupted.spoken)} without interruption; "
            f"first difference at {first}"
        )
    if list(said.results.values()) != [entry.result for entry in executed]:
        wrong.append("the recorded results are not what the gateway answered, in order")
    if folded is not None:
        not_done = [call.state for call in folded.calls.values() if call.state != "done"]
        if not_done:
            wrong.append(f"calls left {', '.join(sorted(set(not_done)))}")
    return wrong
