"""N6: outputs of steps that hold no more, and who has read them.

N6  A completed step that is completed again, or invalidated, makes its readers invalid: those whose ``reads``
    name it with another digest (``by_digest``: direct readers, and theirs when they complete with another
    digest), or all that have read it directly or not (``all``). A step with an external effect becomes
    ``stale`` instead, unless it is declared ``rerunnable`` or the invalidation is ``approved``: its effect
    has happened and is not made a second time by itself.
"""

from __future__ import annotations

from refold.core.run_events import StepInvalidated
from refold.core.runstate import Run, Step


def void(step: Step, seq: int, approved: bool = False) -> None:
    """The step's output holds no more."""
    settled = step.effect != "external" or step.rerunnable or approved
    step.state = "invalid" if settled else "stale"
    step.failures = 0
    step.heartbeat_until_ms = None
    step.updated_seq = seq


def named(run: Run, event: StepInvalidated) -> list[Step]:
    """The named steps that the event changes: completed ones; stale ones where it is approved; running ones
    whose holder is gone."""
    found = []
    for step_id in dict.fromkeys(event.steps):
        step = run.steps[step_id]
        gone = step.state == "running" and (run.state != "leased" or step.epoch < run.epoch)
        if step.state == "completed" or gone or (step.state == "stale" and event.approved):
            found.append(step)
    return found


def readers(run: Run, steps: list[Step]) -> list[Step]:
    """All completed steps that have read one of ``steps``, directly or not; ``steps`` themselves are not
    among them. In the order of the rows."""
    reached = {step.step_id for step in steps}
    more = True
    while more:
        more = False
        for step in run.steps.values():
            if step.step_id in reached or step.state != "completed":
                continue
            if any(read.step_id in reached for read in step.reads):
                reached.add(step.step_id)
                more = True
    start = {step.step_id for step in steps}
    return [s for s in run.steps.values() if s.step_id in reached and s.step_id not in start]


def invalidate(run: Run, event: StepInvalidated, seq: int) -> list[Step]:
    """Apply the event. Returns the steps that changed."""
    steps = named(run, event)
    after = readers(run, steps) if event.mode == "all" else []
    for step in steps:
        void(step, seq, event.approved)
    for step in after:
        void(step, seq)
    return steps + after


def completed_anew(run: Run, step: Step, seq: int) -> list[Step]:
    """After ``step`` has completed: those that had read another output of it hold no more, nor does ``step``
    itself if what it has read has changed meanwhile. Returns the steps that changed, ``step`` not counted."""
    changed = []
    for reader in run.steps.values():
        if reader.state != "completed" or reader is step:
            continue
        if any(r.step_id == step.step_id and r.digest != step.output_digest for r in reader.reads):
            void(reader, seq)
            changed.append(reader)
    for read in step.reads:
        source = run.steps.get(read.step_id)
        if source is not None and source.state == "completed" and source.output_digest != read.digest:
            void(step, seq)
            break
    return changed
