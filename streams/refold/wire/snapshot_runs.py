"""The runs of a snapshot: a field of schema version 3.

Row and steps are kept encoded until they change: a run of 64 steps changes one of them at a time.
"""

from __future__ import annotations

from refold.core.run_sizes import size_run, size_step
from refold.core.runstate import (
    RUN_REASONS,
    RUN_STATES,
    STEP_EFFECTS,
    STEP_STATES,
    BlobRef,
    InputRef,
    Run,
    Step,
    StepRead,
)
from refold.core.session import Session
from refold.wire.pieces import (
    NULL,
    SOME,
    Cursor,
    array,
    blob,
    boolean,
    number,
    optional_number,
    optional_text,
    text,
)


def encode_runs(session: Session) -> bytes:
    enc = array([encode_run(run) for run in session.runs.values()])
    session.enc_runs = enc
    return enc


def encode_run(run: Run) -> bytes:
    """The row and its steps."""
    return (run.enc or _row(run)) + array([step.enc or encode_step(step) for step in run.steps.values()])


def _row(run: Run) -> bytes:
    enc = b"".join(
        (
            text(run.run_id),
            text(run.agent),
            text(run.state),
            text(run.reason),
            optional_text(run.pin),
            optional_text(run.version),
            number(run.epoch),
            optional_text(run.holder),
            optional_number(run.lease_until_ms),
            optional_text(run.avoid),
            number(run.notices),
            number(run.ready_ms),
            number(run.retries_max),
            _optional_blob(run.input),
            _optional_ref(run.input_ref),
            optional_text(run.input_digest),
            _optional_blob(run.output),
            _optional_ref(run.output_ref),
            optional_text(run.output_digest),
            optional_text(run.summary),
            optional_text(run.error_code),
            optional_text(run.error),
            array([text(operation_id) for operation_id in run.waiting_for]),
            number(run.started_seq),
            number(run.updated_seq),
        )
    )
    run.enc = enc
    return enc


def encode_step(step: Step) -> bytes:
    enc = b"".join(
        (
            text(step.step_id),
            text(step.name),
            text(step.state),
            number(step.attempt),
            number(step.failures),
            number(step.epoch),
            text(step.effect),
            boolean(step.rerunnable),
            array([text(name) + text(digest) for name, digest in step.inputs]),
            array([text(step_id) + text(digest) for step_id, digest in step.reads]),
            _optional_blob(step.output),
            _optional_ref(step.output_ref),
            optional_text(step.output_digest),
            number(step.output_seq),
            optional_text(step.summary),
            optional_text(step.error_code),
            optional_text(step.error),
            number(step.heartbeat_ms),
            optional_number(step.heartbeat_until_ms),
            number(step.started_seq),
            number(step.updated_seq),
        )
    )
    step.enc = enc
    return enc


def _optional_blob(value: bytes | None) -> bytes:
    return NULL if value is None else SOME + blob(value)


def _optional_ref(ref: BlobRef | None) -> bytes:
    if ref is None:
        return NULL
    return b"".join(
        (SOME, text(ref.uri), text(ref.sha256), number(ref.length), text(ref.media_type), text(ref.field))
    )


def read_runs(session: Session, cursor: Cursor) -> None:
    """Raises ValueError or IndexError where the bytes are no such rows."""
    start = cursor.at
    count = cursor.count()
    if not count:
        return
    for _ in range(count):
        run = _read_run(cursor)
        if run.run_id in session.runs:
            raise ValueError("a run stands twice")
        session.runs[run.run_id] = run
        session.runs_bytes += run.size
    cursor.end(count)
    session.enc_runs = cursor.data[start : cursor.at]


def _read_run(cursor: Cursor) -> Run:
    start = cursor.at
    run = Run(cursor.text(), cursor.text(), 0, 0)
    run.state = RUN_STATES[RUN_STATES.index(cursor.text())]
    run.reason = RUN_REASONS[RUN_REASONS.index(cursor.text())]
    run.pin = cursor.optional_text()
    run.version = cursor.optional_text()
    run.epoch = cursor.number()
    run.holder = cursor.optional_text()
    run.lease_until_ms = cursor.optional_number()
    run.avoid = cursor.optional_text()
    run.notices = cursor.number()
    run.ready_ms = cursor.number()
    run.retries_max = cursor.number()
    run.input = _read_blob(cursor)
    run.input_ref = _read_ref(cursor)
    run.input_digest = cursor.optional_text()
    run.output = _read_blob(cursor)
    run.output_ref = _read_ref(cursor)
    run.output_digest = cursor.optional_text()
    run.summary = cursor.optional_text()
    run.error_code = cursor.optional_text()
    run.error = cursor.optional_text()
    count = cursor.count()
    run.waiting_for = tuple([cursor.text() for _ in range(count)])
    cursor.end(count)
    run.started_seq = cursor.number()
    run.updated_seq = cursor.number()
    run.enc = cursor.data[start : cursor.at]
    count = cursor.count()
    for _ in range(count):
        step = _read_step(cursor)
        if step.step_id in run.steps:
            raise ValueError("a step stands twice")
        run.steps[step.step_id] = step
    cursor.end(count)
    size_run(run)
    return run


def _read_step(cursor: Cursor) -> Step:
    start = cursor.at
    step = Step(cursor.text(), cursor.text(), 0)
    step.state = STEP_STATES[STEP_STATES.index(cursor.text())]
    step.attempt = cursor.number()
    step.failures = cursor.number()
    step.epoch = cursor.number()
    step.effect = STEP_EFFECTS[STEP_EFFECTS.index(cursor.text())]
    step.rerunnable = cursor.boolean()
    count = cursor.count()
    step.inputs = tuple([InputRef(cursor.text(), cursor.text()) for _ in range(count)])
    cursor.end(count)
    count = cursor.count()
    step.reads = tuple([StepRead(cursor.text(), cursor.text()) for _ in range(count)])
    cursor.end(count)
    step.output = _read_blob(cursor)
    step.output_ref = _read_ref(cursor)
    step.output_digest = cursor.optional_text()
    step.output_seq = cursor.number()
    step.summary = cursor.optional_text()
    step.error_code = cursor.optional_text()
    step.error = cursor.optional_text()
    step.heartbeat_ms = cursor.number()
    step.heartbeat_until_ms = cursor.optional_number()
    step.started_seq = cursor.number()
    step.updated_seq = cursor.number()
    step.enc = cursor.data[start : cursor.at]
    size_step(step)
    return step


def _read_blob(cursor: Cursor) -> bytes | None:
    return cursor.blob() if cursor.some() else None


def _read_ref(cursor: Cursor) -> BlobRef | None:
    if not cursor.some():
        return None
    return BlobRef(cursor.text(), cursor.text(), cursor.number(), cursor.text(), cursor.text())
