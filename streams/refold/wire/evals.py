"""Records of the evals topic: results and cursors of batches <-> bytes, and their keys.

The key of a result is ``<batch>/<sample>``, the sample percent-encoded; that of a cursor ``<batch>/@cursor``,
which no sample's can be, because its ``@`` would be encoded.
"""

from __future__ import annotations

from typing import Any, Final, NamedTuple
from urllib.parse import quote

from refold.errors import InvalidRecord
from refold.wire.codec import decode, encode

RESULT_SUBJECT: Final = "refold.EvalResult"
CURSOR_SUBJECT: Final = "refold.EvalCursor"
CURSOR_NAME: Final = "@cursor"


class EvalResult(NamedTuple):
    """``result``: canonical JSON; ``result_ref``: the dict of a ``BlobRef``. Times in milliseconds."""

    batch: str
    sample: str
    position: int
    status: str
    attempts: int
    params: str
    started_ms: int
    finished_ms: int
    latency_ms: int
    result: bytes | None = None
    result_ref: dict[str, Any] | None = None
    error_code: str | None = None
    error: str | None = None
    epoch: int = 0

    @property
    def done(self) -> bool:
        return self.status == "done"


class EvalCursor(NamedTuple):
    """``through``: all samples before this position have a result."""

    batch: str
    samples_digest: str
    samples: int
    source: str
    runner: str
    params: str
    created_ms: int
    updated_ms: int
    epoch: int = 0
    done: int = 0
    failed: int = 0
    through: int = 0


def encode_eval(row: EvalResult | EvalCursor) -> bytes:
    """The framed record."""
    return encode(RESULT_SUBJECT if isinstance(row, EvalResult) else CURSOR_SUBJECT, row._asdict())


def decode_eval(value: bytes) -> EvalResult | EvalCursor:
    """The inverse of :func:`encode_eval`. Raises InvalidRecord."""
    found = decode(value)
    if found.subject == CURSOR_SUBJECT:
        return EvalCursor(**found.record)
    if found.subject == RESULT_SUBJECT:
        if found.record["status"] not in ("done", "failed"):
            raise InvalidRecord("undecodable", f"the bytes are no {RESULT_SUBJECT} record: no such status")
        return EvalResult(**found.record)
    raise InvalidRecord("unknown_subject", f"the record is of subject {found.subject}, not of an evaluation")


def eval_key(batch: str, sample: str | None) -> bytes:
    """The key of a sample's result, or with None of the cursor."""
    return f"{batch}/{CURSOR_NAME if sample is None else quote(sample, safe='')}".encode()


def batch_of(key: bytes) -> str:
    """The batch a key belongs to. Raises InvalidRecord."""
    batch, mark, name = key.partition(b"/")
    try:
        if mark and batch and name:
            return batch.decode("ascii")
    except UnicodeDecodeError:
        pass
    raise InvalidRecord("bad_key", "the key is not batch/sample")
