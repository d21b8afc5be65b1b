"""Random histories of runs, and an inbox that judges every accepted event by rules written a second time."""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st

from refold.core import Accepted
from refold.core.envelope import Envelope
from refold.core.events import Event, SessionDeleted
from refold.core.reviews import may_change_reviews, review_changes, waiting
from refold.core.run_events import (
    HolderEvent,
    RunLeased,
    RunResolved,
    StepCompleted,
    StepFailed,
    StepInvalidated,
    StepStarted,
    TimerFired,
)
from refold.core.timers import HEARTBEAT, next_deadline
from refold.core.work import WorkItem, may_change_work, work_changes, work_items

from .build import Inbox, event, intended, message, outcome, step
from .runkit import Item, begun, digest, done, fired, held, invalidated, leased, run_started, step_failed

RUNS = ("r", "q")
STEPS = ("a", "b", "c")
OUTPUTS = (b"1", b"2", b"x" * 1_500)
LEASES_MS = (500, 60_000, 10**9, 10**9)


class RunInbox(Inbox):
    """Counts what must never happen. ``life`` numbers the session's incarnations."""

    def __init__(self) -> None:
        super().__init__()
        self.life = 0
        #: (life, run, epoch) → its holder; (life, run, step) → failures since it was last forgiven.
        self.holders: dict[tuple[int, str, int], str] = {}
        self.failures: dict[tuple[int, str, str], int] = {}
        #: Steps with an effect outside that have completed, and nobody said that they may run again.
        self.effects: set[tuple[int, str, str]] = set()
        #: The work and review topics, compacted.
        self.work: dict[str, WorkItem] = {}
        self.reviews: dict[str, str] = {}
        self.kinds: dict[str, int] = {}

    def accept(self, ruling: Accepted, env: Envelope, decoded: Event) -> None:
        session = self.session
        could_work, could_review = may_change_work(session, decoded), may_change_reviews(decoded)
        work, reviews = work_items(session), waiting(session)
        failed_before = {
            (run_id, s.step_id): s.attempt
            for run_id, run in session.runs.items()
            for s in run.steps.values()
            if s.state == "failed"
        }
        self.before(decoded)
        super().accept(ruling, env, decoded)
        self.kinds[env.type] = self.kinds.get(env.type, 0) + 1
        changes, review = work_changes(work, session), review_changes(reviews, session)
        assert could_work or not changes, env.type
        assert could_review or not review, env.type
        for name, item in changes:
            self.work.pop(name, None) if item is None else self.work.update({name: item})
        for name, kind in review:
            self.reviews.pop(name, None) if kind is None else self.reviews.update({name: kind})
        self.after(decoded, failed_before)

    def before(self, decoded: Event) -> None:
        """N2 and N4: who speaks is the holder, and what had its effect is not begun again by itself."""
        if isinstance(decoded, HolderEvent) and not isinstance(decoded, RunLeased):
            run = self.session.runs[decoded.run_id]
            assert (run.state, run.holder, run.epoch) == ("leased", decoded.holder, decoded.epoch)
        if isinstance(decoded, StepStarted):
            key = (self.life, decoded.run_id, decoded.step_id)
            assert key not in self.effects or decoded.rerunnable, "an effect outside would be made twice"
            self.effects.discard(key)
        if isinstance(decoded, StepInvalidated) and decoded.approved:
            self.effects -= {(self.life, decoded.run_id, step_id) for step_id in decoded.steps}

    def after(self, decoded: Event, failed_before: dict[tuple[str, str], int]) -> None:
        session = self.session
        if not session.exists:
            self.life += 1
        if isinstance(decoded, SessionDeleted):
            assert not self.work
            assert not self.reviews
        for run_id, run in session.runs.items():
            if run.holder is not None:
                known = self.holders.setdefault((self.life, run_id, run.epoch), run.holder)
                assert known == run.holder, "two holders of one epoch"
            for row in run.steps.values():
                key = (self.life, run_id, row.step_id)
                if row.state == "failed" and failed_before.get((run_id, row.step_id)) != row.attempt:
                    self.failures[key] = self.failures.get(key, 0) + 1
                    assert self.failures[key] <= run.retries_max + 1, "tried again too often"
                    if self.failures[key] > run.retries_max:
                        assert run.state == "review"
        self._forgive(decoded)
        want = {name: item._replace(lease_until_ms=None, seq=0) for name, item in work_items(session).items()}
        assert {n: i._replace(lease_until_ms=None, seq=0) for n, i in self.work.items()} == want, "N1"
        assert self.reviews == waiting(session), "R1"
        deadline = next_deadline(session)
        assert bool(session.timer_ms) == (deadline is not None), "K1"
        assert deadline is None or session.timer_ms <= deadline, "K1: it would be too late"
        if isinstance(decoded, TimerFired):
            assert deadline is None or deadline > session.time_ms, "something due did not happen"

    def _forgive(self, decoded: Event) -> None:
        session = self.session
        if isinstance(decoded, StepCompleted):
            key = (self.life, decoded.run_id, decoded.step_id)
            self.failures.pop(key, None)
            row = session.runs[decoded.run_id].steps[decoded.step_id]
            if row.effect == "external" and not row.rerunnable:
                self.effects.add(key)
        elif isinstance(decoded, RunResolved | StepInvalidated):
            run = session.runs[decoded.run_id]
            for row in run.steps.values():
                if isinstance(decoded, RunResolved) or row.state in ("invalid", "stale"):
                    self.failures.pop((self.life, decoded.run_id, row.step_id), None)
        elif isinstance(decoded, StepFailed):
            assert session.runs[decoded.run_id].steps[decoded.step_id].error_code != HEARTBEAT


#: What agents, people and the worker do; holders' events most of all.
ACTS = (
    *("start", *["take"] * 8, "renew", "release", "suspend", "suspend", "complete", "fail", "stop"),
    *(*["resolve"] * 3, "pin", "plan", *["begin"] * 8, *["done"] * 6, "failed", "failed", "beat", "beat"),
    *("invalidate", "invalidate", *["timer"] * 2, "ask", "ask", "ask", "rule", "message", "redeliver"),
    *("close", "reopen", "reopen", "delete", "quarantine", "release it", "release it"),
)


@st.composite
def run_histories(draw: st.DrawFn, longest: int = 60) -> RunInbox:
    """A played inbox; every accepted event was judged, and the state's bytes read back."""
    inbox = RunInbox()
    acts = st.tuples(st.sampled_from(ACTS), st.sampled_from(RUNS), st.sampled_from(STEPS), st.integers(0, 11))
    for name, run_id, step_id, chance in draw(st.lists(acts, min_size=10, max_size=longest)):
        if chance == 11:
            inbox.clock += 30_000
        if name == "redeliver":
            if inbox.records:
                inbox.put(*inbox.records[(chance * 7) % len(inbox.records)])
            continue
        inbox.send(act(inbox, name, run_id, step_id, chance))
    return inbox


def act(inbox: Inbox, name: str, run_id: str, step_id: str, chance: int) -> Item:
    """Mostly what is right now; sometimes an epoch, a holder or an attempt that is not."""
    new = f"{run_id}{inbox.offset}"
    held_ids = [found for found in inbox.session.runs if found[0] == run_id]
    run_id = next(
        (found for found in held_ids if inbox.session.runs[found].is_open), held_ids[-1] if held_ids else new
    )
    run = inbox.session.runs.get(run_id)
    if (run is None or not run.is_open) and chance < 9:
        return run_started(new, retries_max=chance % 3, input=b"i" * (chance * 200) or None)
    epoch = 1 if run is None else run.epoch
    holder = (run.holder if run is not None else None) or "h1"
    if chance == 0:
        holder = "nobody"
    elif chance == 1:
        epoch -= 1
    of_run: dict[str, Any] = {"run_id": run_id, "holder": holder}
    row = None if run is None else run.steps.get(step_id)
    attempt = 0 if row is None else row.attempt
    effect = ("none", "idempotent", "external")[chance % 3]
    match name:
        case "start":
            return run_started(run_id, retries_max=chance % 3)
        case "take":
            taker = ("h1", "h2")[chance % 2]
            of_taker: dict[str, Any] = {"run_id": run_id, "holder": taker, "lease_ms": LEASES_MS[chance % 4]}
            version = ("v1", "v2")[chance == 4]
            return leased(epoch + 1, **of_taker, version=version)
        case "renew":
            return leased(epoch, **of_run, lease_ms=LEASES_MS[chance % 4])
        case "release":
            return held("RunReleased", epoch, **of_run)
        case "suspend":
            names = sorted(waiting(inbox.session)) if chance % 4 else ["op0", "op1"]
            return held("RunSuspended", epoch, **of_run, waiting_for=names[:2])
        case "complete":
            return held("RunCompleted", epoch, **of_run, output=OUTPUTS[chance % 3], summary="s" * 50)
        case "fail":
            return held("RunFailed", epoch, **of_run, code="x", error="e" * 400)
        case "stop":
            return event("RunStopped", run_id=run_id) if chance < 4 else message(f"m{chance}")
        case "resolve":
            return event("RunResolved", run_id=run_id, action=("retry", "retry", "fail")[chance % 3])
        case "pin":
            return event("RunPinMoved", run_id=run_id, pin=(None, "v1", "v2")[chance % 3])
        case "plan":
            steps = [{"step_id": s, "name": s, "summary": "do"} for s in STEPS[: chance % 4]]
            return held("PlanSet", epoch, **of_run, steps=steps)
        case "begin":
            again = row is not None and row.state == "running"
            return begun(
                step_id,
                attempt + (not again) + (chance == 2),
                epoch,
                **of_run,
                effect=effect,
                rerunnable=chance % 5 == 4,
                heartbeat_ms=(0, 1_000, 40_000)[chance % 3],
                inputs=[{"name": "n", "digest": "d" * 64}] * (chance % 3),
            )
        case "done":
            reads = {} if run is None else {s: _read(run.steps, s) for s in STEPS if s != step_id}
            shown = {s: o for s, o in reads.items() if o is not None} if chance % 2 else {}
            return done(step_id, OUTPUTS[chance % 3], attempt, epoch, **of_run, reads=shown, summary="s" * 60)
        case "failed":
            return step_failed(step_id, attempt, epoch, **of_run, retryable=chance % 4 != 3)
        case "beat":
            return held("StepHeartbeat", epoch, **of_run, step_id=step_id, attempt=attempt)
        case "invalidate":
            mode = ("by_digest", "all")[chance % 2]
            return invalidated(step_id, run_id=run_id, mode=mode, approved=chance % 3 == 2)
        case "timer":
            inbox.clock += chance * 2_000
            return fired()
    return _else(name, chance)


def _read(steps: dict[str, Any], step_id: str) -> bytes | None:
    """An output that the step has, or had; None where it never had one."""
    row = steps.get(step_id)
    if row is None or row.output_digest is None:
        return None
    return next((o for o in OUTPUTS if digest(o) == row.output_digest), None)


def _else(name: str, chance: int) -> Item:
    operation = ("op0", "op1")[chance % 2]
    match name:
        case "ask":
            if chance < 6:
                return intended(operation, f"c{chance % 2}")
            return step("ToolCallApprovalRequested", operation)
        case "rule":
            if chance < 8:
                return step(("ToolCallApproved", "ToolCallDenied")[chance % 4 == 3], operation)
            return outcome(operation, failed=True, reconciled=True)
        case "close":
            return event("SessionClosed")
        case "reopen":
            return event("SessionReopened")
        case "quarantine" if chance < 4:
            return event("SessionQuarantined", code="x", reason="y", partition=0, offset=0)
        case "release it":
            return event(("SessionReleased", "SessionReleaseFinished")[chance % 2])
        case "delete" if chance < 2:
            return event("SessionDeleted")
    return message(f"m{chance}")
