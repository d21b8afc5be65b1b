"""Runs, work and timers in the simulation: what agents send, and the checker that looks at every commit.

An agent here sees the session as it is journalled and says what an agent might say next; now and then what
it would have said earlier, under an old lease, or twice. One session is the workload's, which closes, deletes
and quarantines it meanwhile; one is talked in, wants summaries, and ends when nobody talks.
"""

from __future__ import annotations

import random
from collections import Counter
from typing import Any, Final

from refold.core.envelope import Envelope
from refold.core.runstate import Run
from refold.core.session import Session
from refold.core.slots import SlotMap
from refold.core.work import WorkItem, work_items
from refold.engine import rows
from refold.engine.side import kind_of
from refold.engine.timers import timer_key
from refold.topology.names import TopicNames
from refold.wire.codec import encode
from refold.wire.envelope import decode_envelope, encode_envelope
from refold.wire.journal import decode_journal
from refold.wire.timers import Armed, decode_timer, encode_timer
from refold.wire.work import decode_work, split_work_key

from . import disk
from .broker import Broker
from .checkers import FoldChecker
from .transactions import Decision
from .workload import TENANT, Sent

#: Few, so that runs of one session meet.
SESSIONS: Final = ("r0", "r1", "s0")
#: Has messages of its own, a time after which it ends, and wants summaries.
TALKED: Final = "t0"
TALK: Final = 0.15
TTLS_MS: Final = (0, 100, 700, 3_000)
SUMMARIES: Final = (0, 2, 6)

HOLDERS: Final = ("a0", "a1", "a2")
#: Over before the next record, within the run, after it.
LEASES_MS: Final = (20, 300, 1_500, 60_000)
HEARTBEATS_MS: Final = (50, 800, 300_000)

#: Share of records that say what holds no more: another epoch, another holder, an id twice; and of those that
#: do not wait for what was said before.
STALE: Final = 0.15
HASTY: Final = 0.1
REPEATED: Final = 0.08
STARTED: Final = 0.1


class RunWorkload:
    def __init__(self, chance: random.Random, broker: Broker, topics: TopicNames, fold: FoldChecker) -> None:
        """``fold``: what is journalled, which is what an agent sees."""
        self._chance = chance
        self._broker = broker
        self._topics = topics
        self._fold = fold
        self._slots = SlotMap(broker.partitions)
        self._number = 0
        self._last: Sent | None = None
        #: Session key -> its seq when something was said of it last.
        self._said: dict[bytes, int] = {}

    def step(self) -> None:
        """A record on the inbox, or none."""
        record = self._last
        if record is None or self._chance.random() >= REPEATED:
            record = self._next()
        if record is None:
            return
        self._last = record
        self._broker.append(self._topics.inbox, record.partition, record.key, record.value, record.headers)

    def _next(self) -> Sent | None:
        chance = self._chance
        if chance.random() < TALK:
            return self._talk()
        name = chance.choice(SESSIONS)
        key = f"{TENANT}/{name}".encode()
        session = self._fold.sessions.get(key)
        seq = 0 if session is None else session.seq
        runs = [] if session is None else [run for run in session.runs.values() if run.is_open]
        if self._said.get(key) == seq and (not runs or chance.random() >= HASTY):
            return None
        self._said[key] = seq
        if session is None or not runs or chance.random() * len(runs) ** 2 < STARTED:
            return self._event(name, key, "RunStarted", run_id=f"r{chance.randrange(40)}", agent="sim")
        run = chance.choice(runs)
        kind, fields = self._about(session, run)
        return self._event(name, key, kind, run_id=run.run_id, **fields)

    def _talk(self) -> Sent:
        chance = self._chance
        name = "s0" if chance.random() < 0.2 else TALKED
        key = f"{TENANT}/{name}".encode()
        if name == "s0" or chance.random() < 0.4:
            policy = {
                "ttl_ms": chance.choice(TTLS_MS),
                "ttl_action": chance.choice(("close", "delete")),
                "summary_messages": chance.choice(SUMMARIES),
            }
            return self._event(name, key, "SessionConfigured", policy=policy)
        said = {"message_id": f"m-{self._broker.kernel.now_us}", "role": "user"}
        return self._event(name, key, "MessageAppended", **said, content=[{"type": "text", "text": "hello"}])

    def _about(self, session: Session, run: Run) -> tuple[str, dict[str, Any]]:
        chance = self._chance
        stale = chance.random() < STALE
        if run.state == "ready":
            return self._lease(chance.choice(HOLDERS), run.epoch + (2 if stale else 1))
        if run.state == "review":
            if chance.random() < 0.3:
                return "RunStopped", {"reason": "not needed"}
            return "RunResolved", {"action": chance.choice(("retry", "retry", "fail"))}
        if run.state == "waiting":
            return "RunStopped", {"reason": "not needed"}
        holder, epoch = run.holder or HOLDERS[0], run.epoch - stale
        mine: dict[str, Any] = {"holder": holder, "epoch": epoch}
        match chance.randrange(12):
            case 0 | 1:
                return self._lease(holder, epoch)
            case 2:
                return "RunReleased", mine
            case 3:
                return "RunCompleted", {**mine, "output": b"done"}
            case 4:
                waiting = [call.operation_id for call in session.calls.values()]
                return "RunSuspended", {**mine, "waiting_for": waiting[:1] or ["none"]}
            case 5:
                plan = [{"step_id": f"t{n}", "name": "step"} for n in range(chance.randrange(1, 4))]
                return "PlanSet", {**mine, "steps": plan}
            case 6:
                mode = chance.choice(("by_digest", "all"))
                return "StepInvalidated", {"steps": [f"t{chance.randrange(3)}"], "mode": mode}
            case _:
                return self._step_of(run, mine)

    def _lease(self, holder: str, epoch: int) -> tuple[str, dict[str, Any]]:
        lease_ms = self._chance.choice(LEASES_MS)
        return "RunLeased", {"holder": holder, "epoch": epoch, "lease_ms": lease_ms, "version": "1"}

    def _step_of(self, run: Run, mine: dict[str, Any]) -> tuple[str, dict[str, Any]]:
        chance = self._chance
        running = [step for step in run.steps.values() if step.state == "running"]
        step_id = chance.choice(running).step_id if running else f"t{chance.randrange(3)}"
        known = run.steps.get(step_id)
        attempt = 0 if known is None else known.attempt
        if not running or chance.random() < 0.2:
            again = known is not None and known.state == "running"
            effect = chance.choice(("none", "idempotent", "external"))
            begun = {"step_id": step_id, "name": "step", "attempt": attempt + (not again), "effect": effect}
            return "StepStarted", {**mine, **begun, "heartbeat_ms": chance.choice(HEARTBEATS_MS)}
        about = {**mine, "step_id": step_id, "attempt": attempt}
        match chance.randrange(4):
            case 0:
                return "StepFailed", {**about, "code": "sim", "retryable": chance.random() < 0.6}
            case 1:
                return "StepHeartbeat", about
            case _:
                return "StepCompleted", {**about, "output": b"%d" % self._number, "summary": "did it"}

    def _event(self, session: str, key: bytes, kind: str, **fields: Any) -> Sent:
        self._number += 1
        env = Envelope(
            event_id=f"run-{self._broker.kernel.now_us}-{self._number}",
            tenant=TENANT,
            session=session,
            type=kind,
            event_time_ms=1_700_000_000_000 + self._number,
            payload=encode(f"refold.event.{kind}", fields),
        )
        return Sent(self._slots.partition(key), key, encode_envelope(env), None)


class RunChecker:
    """After every commit: the work topic (rule N1) and the timers' rows (rule K2) are what the sessions, as
    journalled so far, say; and proposals travel with the offset of their partition (rule F)."""

    def __init__(self, report: Any, topics: TopicNames, fold: FoldChecker, happened: Counter[str]) -> None:
        """``fold``: what the journal says, moved on before this looks."""
        self._report = report
        self._topics = topics
        self._fold = fold
        self._happened = happened
        #: Session key -> name -> item, as on the work topic.
        self.work: dict[bytes, dict[str, WorkItem]] = {}
        #: Side key -> framed record, by session and by partition.
        self.timers: dict[int, dict[bytes, bytes]] = {}

    def on_decided(self, decision: Decision) -> None:
        touched: set[bytes] = set()
        fired: set[bytes] = set()
        for topic, partition, entry in decision.records:
            key = entry.key or b""
            if topic == self._topics.journal:
                touched.add(key)
                if decode_journal(entry.value).env.type == "TimerFired":
                    fired.add(key)
                    self._happened["timer fired"] += 1
            elif topic == self._topics.work:
                session_key, name = split_work_key(key)
                self._at_home(decision, session_key, partition, "work")
                items = self.work.setdefault(session_key, {})
                if entry.value is None:
                    if items.pop(name, None) is None:
                        self._fail(decision, f"a tombstone of {key!r}, which is not there")
                else:
                    items[name] = decode_work(entry.value)
            elif topic == self._topics.generations and kind_of(key) == "timer":
                kept = self.timers.setdefault(partition, {})
                if entry.value is not None:
                    kept[key] = entry.value
                elif kept.pop(key, None) is None:
                    self._fail(decision, f"a tombstone of {key!r}, which is not there")
            elif topic == self._topics.inbox and "refold-origin" not in dict(entry.headers or ()):
                self._proposal(decision, partition, key, entry.value or b"")
        for key in sorted(touched):
            session = self._fold.sessions[key]
            self._compare(decision, key, session)
            if key in fired and (session.seq == 0 or session.status == "closed"):
                self._happened["idle session ended"] += 1

    def _fail(self, decision: Decision, what: str) -> None:
        self._report.fail("runs", f"{decision.txid} #{decision.number}: {what}")

    def _at_home(self, decision: Decision, key: bytes, partition: int, what: str) -> None:
        if self._fold.partition_of.get(key) != partition:
            self._fail(decision, f"{what} of {key!r} on partition {partition}")

    def _proposal(self, decision: Decision, partition: int, key: bytes, value: bytes) -> None:
        env = decode_envelope(value)
        if env.type != "TimerFired":
            self._fail(decision, f"a worker wrote {env.type} to the inbox")
        if partition not in decision.offsets:
            self._report.fail("rule F", f"{decision.txid} #{decision.number} proposes without an offset")
        self._at_home(decision, key, partition, "a proposal")
        self._report.compared["proposals"] += 1

    def _compare(self, decision: Decision, key: bytes, session: Session) -> None:
        for run in session.runs.values():
            if run.updated_seq == session.seq:
                self._happened[f"run {run.state} ({run.reason})"] += 1
        wanted, items = work_items(session), self.work.get(key, {})
        if wanted.keys() != items.keys() or any(not item.same(items[n]) for n, item in wanted.items()):
            self._fail(decision, f"work of {key!r} is {items}, the session says {wanted}")
        self._report.compared["work = f(state)"] += len(wanted)
        home = self.timers.setdefault(self._fold.partition_of[key], {})
        rows_of = {at: value for at, value in home.items() if decode_timer(value)[:2] == _names(session)}
        if rows_of != row_of(session):
            self._fail(decision, f"timer rows of {key!r} are {list(rows_of)}, timer_ms {session.timer_ms}")
        self._report.compared["timer rows = f(state)"] += len(rows_of)

    def on_live(
        self, machine: str, partition: int, database: disk.Database, besides: frozenset[bytes] = frozenset()
    ) -> None:
        """``besides``: keys that are being written."""
        held = {key[1:]: row for key, row in database.live.items() if key.startswith(rows.SIDE)}
        wanted = self.timers.get(partition, {})
        odd = sorted(
            key
            for key in held.keys() | wanted.keys()
            if kind_of(key) == "timer" and key not in besides and held.get(key) != wanted.get(key)
        )
        if odd:
            self._report.fail("restore", f"{machine}: restored {partition} has other timers: {odd}")
        self._report.compared["restored timer rows"] += len(wanted)

    def due(self, now_ms: int) -> bool:
        """Whether a deadline has come that did not fire."""
        records = (value for kept in self.timers.values() for value in kept.values())
        return any(decode_timer(value).deadline_ms <= now_ms for value in records)


def _names(session: Session) -> tuple[str, str]:
    return session.tenant, session.session


def row_of(session: Session) -> dict[bytes, bytes]:
    """The side row of its deadline, or none."""
    if not session.timer_ms:
        return {}
    armed = Armed(*_names(session), session.timer_ms)
    return {timer_key(session.timer_ms, session.key.encode()): encode_timer(armed)}
