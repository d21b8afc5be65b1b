"""Every small history: no draws, all cases.

A case is a word of up to :data:`EVENTS_MAX` records, a cut of it into commits, a death at one named point of
one commit (or of the restore at the start, or in a rebalance callback between two commits), and the offset
from which the inbox is delivered again after the death: every one from the beginning to the committed one. In
some the process dies once more, at a named point of the restore that follows. The word goes on after the
restart. Journal, state, history, rejected and rulings must be what a straight loop over the inbox says, as at
the end of other runs.

Going back behind the committed offset is what an operator does by resetting the group's offset, and stronger
than what Kafka does by itself; de-duplication (rule U), the disk that is ahead of the group then (rule Z) and
the takeover (rule T) must make it change nothing.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import combinations, pairwise
from typing import Final

from refold.core.envelope import Actor, Envelope
from refold.engine import bulk
from refold.engine.points import BULK, REBALANCE, RESTORE
from refold.wire.codec import encode
from refold.wire.envelope import encode_envelope

from . import seams
from .oracle import Expected
from .parameters import Parameters, Result
from .placements import COMMIT_PLACES
from .worker import SESSION_TIMEOUT_MS, Worker
from .workload import TENANT, Sent
from .world import QUIESCE_US_MAX, QUIET_STEPS, World

EVENTS_MAX: Final = 4

#: m: a stamped message; u: one without a stamp; r: the record before, byte for byte; f: the first record,
#: again; i: a tool call is intended, c: it is completed; x: not decodable; s: of another session. Each begins
#: with an accepted record: an offset above 0 beside an empty state topic is refused at the start, rightly.
WORDS: Final = ("m", "mr", "us", "mrx", "uic", "mxfs", "uicr")

#: Places in a commit at which the coordinator has decided.
DECIDED: Final = (("in_commit", "after"), ("after_commit", ""), ("after_write_batch", ""))

#: After these deaths of words up to this length, a second one in the restore.
TWICE: Final = (("after_produce", ""), ("after_write_batch", ""))
TWICE_EVENTS_MAX: Final = 2

_KEY: Final = f"{TENANT}/a".encode()


def records(word: str) -> list[Sent]:
    sent: list[Sent] = []
    counter = 0
    for at, kind in enumerate(word):
        if kind in "rf":
            sent.append(sent[0 if kind == "f" else -1])
            continue
        if kind == "x":
            sent.append(Sent(0, _KEY, b"\x07garbage", None))
            continue
        session = "b" if kind == "s" else "a"
        stamp = {}
        if kind == "m":
            counter += 1
            stamp = {"producer_id": "p", "producer_epoch": 1, "producer_counter": counter}
        env = Envelope(
            event_id=f"e{at}",
            tenant=TENANT,
            session=session,
            type=_TYPES.get(kind, "MessageAppended"),
            event_time_ms=1_700_000_000_000 + at,
            actor=Actor("user", "sim"),
            payload=_payload(kind, at),
            **stamp,  # type: ignore[arg-type]
        )
        sent.append(Sent(0, f"{TENANT}/{session}".encode(), encode_envelope(env), None))
    return sent


_TYPES: Final = {"i": "ToolCallIntended", "c": "ToolCallCompleted"}


def _payload(kind: str, at: int) -> bytes:
    if kind == "i":
        row = {"operation_id": "op", "tool": "look", "arguments": "{}"}
        return encode("refold.event.ToolCallIntended", row)
    if kind == "c":
        return encode("refold.event.ToolCallCompleted", {"operation_id": "op", "summary": "found"})
    message = {"message_id": f"m{at}", "role": "user", "content": [{"type": "text", "text": f"text {at}"}]}
    return encode("refold.event.MessageAppended", message)


@dataclass(frozen=True, slots=True)
class Case:
    word: str
    #: Numbers of records that are sent together, each lot when the one before is committed.
    lots: tuple[int, ...]
    #: Where it dies, and in which commit: the claim (rule D) is the first, then one for each lot.
    place: tuple[str, str]
    nth: int
    #: Delivered again from here; ``None``: from the committed offset, as Kafka does.
    again_from: int | None
    #: Where it dies again, when it comes back.
    second: str | None = None

    def __str__(self) -> str:
        where = " ".join(part for part in self.place if part)
        again = "the committed offset" if self.again_from is None else f"offset {self.again_from}"
        second = "" if self.second is None else f", and again at {self.second}"
        return (
            f"{self.word} in lots of {self.lots}, death at {where} of commit {self.nth},"
            f" again from {again}{second}"
        )


def cuts(count: int) -> Iterator[tuple[int, ...]]:
    """Every way to cut ``count`` records into lots."""
    for parts in range(count):
        for edges in combinations(range(1, count), parts):
            bounds = (0, *edges, count)
            yield tuple(b - a for a, b in pairwise(bounds))


def deaths(commits: int) -> Iterator[tuple[tuple[str, str], int]]:
    """Every place × every commit."""
    for place in COMMIT_PLACES:
        for nth in range(1, commits + 2):
            yield place, nth
    for name in REBALANCE:
        for nth in range(1, commits + 2):
            yield (name, ""), nth
    for name in RESTORE:
        yield (name, ""), 1


def committed_at(lots: Sequence[int], place: tuple[str, str], nth: int) -> int:
    """The committed offset after a death there: of the lots before, and of this one once it is decided."""
    if place[0] in RESTORE:
        return 0
    if place[0] in REBALANCE:
        return sum(lots[: nth - 1])
    return sum(lots[: nth - 1 if place in DECIDED else max(0, nth - 2)])


def cases(words: Sequence[str] = WORDS) -> Iterator[Case]:
    for word in words:
        for lots in cuts(len(word)):
            for place, nth in deaths(len(lots)):
                yield Case(word, lots, place, nth, None)
                for again in range(committed_at(lots, place, nth) + 1):
                    yield Case(word, lots, place, nth, again)
                    if place in TWICE and len(word) <= TWICE_EVENTS_MAX:
                        for second in (*RESTORE, *BULK):
                            yield Case(word, lots, place, nth, again, second)


class SmallWorld(World):
    """One worker, one partition, one case."""

    def __init__(self, case: Case, *, sabotage: str | None = None, keep_trace: bool = False) -> None:
        parameters = Parameters(seed=1, ticks=0, workers=1, partitions=1, events=0, sabotage=sabotage)
        super().__init__(parameters, scenario=self._decide, inbox=(), keep_trace=keep_trace)
        self._case = case
        #: Lots sent so far: which commit this is. (One may need two attempts: a new member asks for one more
        #: round of the group.)
        self._told = 0
        self.died = self.died_twice = False
        #: Offsets of records that were ruled on and are delivered once more.
        self._repeated = range(0)
        self.fetch_records_max = 0
        self.kernel.slices = False

    def run(self) -> Result:
        with seams.installed(self.kernel, self.broker, self.trouble, self.happened):
            # Every run is a file: the two points of one are reached.
            bulk.FILE_BYTES_MIN = 1  # type: ignore[misc]
            try:
                self._faults_on = False
                self._tell()
                return self._result()
            finally:
                self.kernel.shutdown()

    def _tell(self) -> None:
        (worker,) = self.workers
        left = records(self._case.word)
        worker.start()
        if not self._until_quiet(worker) or not self._rebalanced(worker):
            return
        for lot in self._case.lots:
            self._told += 1
            for record in left[:lot]:
                self.broker.append(
                    self.topics.inbox, record.partition, record.key, record.value, record.headers
                )
            del left[:lot]
            if not self._until_quiet(worker) or not self._rebalanced(worker):
                return
        if not self.report.failures:
            self._compare()

    def _rebalanced(self, worker: Worker) -> bool:
        """Between two commits: where the case is a death in a rebalance callback, cause one."""
        if self._case.place[0] not in REBALANCE or self._told != self._case.nth - 1:
            return True
        group = self.broker.group
        end, again = self.kernel.now_us + QUIESCE_US_MAX, 0
        while not self.died:
            if self.kernel.now_us >= again:
                # More than once where the member was about to join by itself: then it is not told of a loss.
                again = self.kernel.now_us + SESSION_TIMEOUT_MS * 1_000
                self._take_away()
            if worker.process.dead:
                worker.start()
            if not self._step():
                return False
            if self.kernel.now_us > end:
                self.report.fail("liveness", f"{self._case}: no rebalance")
                return False
        group.withheld = frozenset()
        return self._until_quiet(worker)

    def _take_away(self) -> None:
        group = self.broker.group
        if self._case.place[0] == "on_revoke":
            group.withheld = frozenset({0})
            group.rebalance()
            return
        for member in sorted(group.members):
            group.remove(member, "evicted")

    def _until_quiet(self, worker: Worker) -> bool:
        end = self.kernel.now_us + QUIESCE_US_MAX
        look = 0
        while True:
            if worker.process.dead:
                self._again()
                worker.start()
            if self.kernel.steps >= look:
                if self._quiet():
                    return True
                look = self.kernel.steps + QUIET_STEPS
            if not self._step():
                return False
            if self.kernel.now_us > end:
                self.report.fail("liveness", f"{self._case}: not quiet")
                return False

    def _again(self) -> None:
        """The dead worker's transaction ends (it is fenced, or it is decided and its markers arrive), and the
        operator sets the offset back."""
        transactions, group = self.broker.transactions, self.broker.group
        txid = self.topics.transactional_id("w0")
        # Its successor does the same first; here, so that an open transaction does not move the offset later.
        transactions.init(txid, self.transaction_timeout_ms, QUIESCE_US_MAX)
        offset = self._case.again_from
        if offset is None or self.died_twice:
            return
        if self._case.second in BULK:
            # A copy that is whole has nothing to read.
            self.workers[0].disk.lose()
        committed = group.offsets.get(0)
        found = 0 if committed is None else committed.offset
        if found != committed_at(self._case.lots, self._case.place, self._case.nth):
            self.report.fail("harness", f"{self._case}: {found} is committed")
        if committed is None:
            return
        self._repeated = range(offset, committed.offset)
        group.set_back(0, offset)
        self.once.set_back(0, offset)
        for seen in (self.once.rejected, self.once.forwarded):
            for place in [place for place in seen if place[1] >= offset]:
                del seen[place]

    def _expected(self) -> Expected:
        expected = super()._expected()
        for place, ruled in expected.rulings.items():
            if place[1] in self._repeated and ruled.status == "accepted":
                # The second time it is a duplicate of what it was the first time.
                expected.rulings[place] = ruled._replace(status="duplicate")
        return expected

    def _decide(self, worker: Worker, name: str, when: str) -> str | None:
        if self.died and name == self._case.second and not self.died_twice:
            self.died_twice = True
            return "kill"
        if (name, when) != self._case.place or self.died or self._told != self._case.nth - 1:
            return None
        self.died = True
        return "kill"

    def _plan_restart(self, worker: Worker) -> None:
        """By hand, after the offset was set back."""


@dataclass(slots=True)
class Tally:
    cases: int = 0
    events: int = 0
    deaths: dict[str, int] = field(default_factory=dict)
    #: Second deaths. Where nothing is committed no file is made, so not every case has one.
    second: dict[str, int] = field(default_factory=dict)
    #: Offset from which was delivered again -> cases.
    offsets: dict[str, int] = field(default_factory=dict)
    failed: list[tuple[Case, list[str]]] = field(default_factory=list)


def run_all(words: Sequence[str] = WORDS, *, sabotage: str | None = None, failures_max: int = 1) -> Tally:
    tally = Tally()
    for case in cases(words):
        tally.cases += 1
        world = SmallWorld(case, sabotage=sabotage)
        result = world.run()
        if result.failures:
            tally.failed.append((case, result.failures))
            if len(tally.failed) >= failures_max:
                return tally
        tally.events += result.events
        if world.died:
            where = " ".join(part for part in case.place if part)
            again = "committed" if case.again_from is None else str(case.again_from)
            tally.deaths[where] = tally.deaths.get(where, 0) + 1
            tally.offsets[again] = tally.offsets.get(again, 0) + 1
            if world.died_twice and case.second is not None:
                tally.second[case.second] = tally.second.get(case.second, 0) + 1
        elif not result.failures:
            # Every case is one: a place that is not reached is a case that was not tried.
            tally.failed.append((case, ["harness: the place was not reached"]))
    return tally
