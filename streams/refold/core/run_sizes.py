"""What runs and their steps count for among RUNS_BYTES_MAX: an upper bound of their encoded bytes.

Counted before anything is encoded, so that decide can refuse what would not fit (S8). The names in a run's
row that come and go with its leases count at their largest always: so nobody is refused a lease, an end or a
renewal for want of room.
"""

from __future__ import annotations

from typing import Final

from refold.core.limits import (
    DIGEST_BYTES_MAX,
    ERROR_CODE_BYTES_MAX,
    RUN_ERROR_BYTES_MAX,
    RUN_INLINE_BYTES_MAX,
    RUN_NAME_BYTES_MAX,
    RUN_REF_BYTES_MAX,
)
from refold.core.runstate import BlobRef, InputRef, Run, Step, StepRead
from refold.core.session import Session
from refold.core.texts import clip

_NUMBER: Final = 10
_TEXT: Final = 3  # a union branch and a length of two
_NAME: Final = RUN_NAME_BYTES_MAX + _TEXT
_DIGEST: Final = DIGEST_BYTES_MAX + _TEXT
_WORD: Final = 12  # a state, reason or effect with its length
_LIST: Final = 3

#: Six names (run, agent, pin, version, holder, avoid), two digests, code and error, ten numbers.
RUN_ROW_BYTES: Final = (
    6 * _NAME
    + 2 * _WORD
    + 2 * _DIGEST
    + ERROR_CODE_BYTES_MAX
    + RUN_ERROR_BYTES_MAX
    + 2 * _TEXT
    + 10 * _NUMBER
    + 2 * _LIST
    + 8 * 2  # the nulls or lengths of input, output, their references, summary, lease
)
#: Without the texts: three words, a flag, nine numbers, five nulls or lengths, two lists, id and name.
STEP_ROW_BYTES: Final = 3 * _WORD + 1 + 9 * _NUMBER + 8 * _TEXT + 2 * _LIST + 2 * _TEXT

#: What a started step may still need when it ends: digest and code. Held free for every running step.
STEP_OUTCOME_BYTES: Final = 2 * _DIGEST + 4 * _NUMBER


def text_bytes(value: str | None) -> int:
    return 0 if value is None else len(value.encode()) + _TEXT


def ref_bytes(ref: BlobRef | None) -> int:
    if ref is None:
        return 0
    texts = (ref.uri, ref.sha256, ref.media_type, ref.field)
    return sum([len(value.encode()) + _TEXT for value in texts]) + _NUMBER


def pair_bytes(pairs: tuple[InputRef, ...] | tuple[StepRead, ...]) -> int:
    return sum([len(first.encode()) + len(second.encode()) + 2 * _TEXT for first, second in pairs])


def size_step(step: Step) -> None:
    """Count the step anew, after any change of it."""
    step.size = (
        STEP_ROW_BYTES
        + len(step.step_id.encode())
        + len(step.name.encode())
        + pair_bytes(step.inputs)
        + pair_bytes(step.reads)
        + (0 if step.output is None else len(step.output))
        + ref_bytes(step.output_ref)
        + text_bytes(step.output_digest)
        + text_bytes(step.summary)
        + text_bytes(step.error_code)
        + text_bytes(step.error)
    )


def size_run(run: Run) -> None:
    """Count the run anew; its steps are counted already."""
    run.size = (
        RUN_ROW_BYTES
        + (0 if run.input is None else len(run.input))
        + ref_bytes(run.input_ref)
        + (0 if run.output is None else len(run.output))
        + ref_bytes(run.output_ref)
        + text_bytes(run.summary)
        + sum([text_bytes(operation_id) for operation_id in run.waiting_for])
        + sum([step.size for step in run.steps.values()])
    )


def resize(session: Session, run: Run, *steps: Step) -> None:
    """After a change of ``run`` and of ``steps``: their encodings are gone and their sizes counted."""
    for step in steps:
        step.enc = None
        size_step(step)
    run.enc = None
    session.runs_bytes -= run.size
    size_run(run)
    session.runs_bytes += run.size
    session.enc_runs = session.enc_tail = None


def kept_inline(value: bytes | None) -> bytes | None:
    """``value`` where it is short enough for the row."""
    return None if value is None or len(value) > RUN_INLINE_BYTES_MAX else value


def kept_ref(ref: BlobRef | None) -> BlobRef | None:
    return None if ref is None or ref_bytes(ref) > RUN_REF_BYTES_MAX else ref


def clip_to(text: str | None, bytes_max: int, room: int) -> str | None:
    """The beginning of ``text`` that both limits allow; None where nothing of it fits."""
    if text is None or room <= _TEXT:
        return None
    return clip(text, min(bytes_max, room - _TEXT)) or None
