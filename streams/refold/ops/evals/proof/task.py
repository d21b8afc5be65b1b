"""The runner of ``verify eval``: writes down that it was called, waits a little, returns or fails.

The book is a file: one line of a fixed length per call, appended in one write, so that it survives the
process and counts calls by its size.
"""

from __future__ import annotations

import asyncio
import os
import random
from pathlib import Path
from typing import Any, Final

from refold.ops.evals.proof.plan import expected, fails_first
from refold.ops.evals.runner import EvalContext

BOOK: Final = "EVAL_PROOF_BOOK"
#: Not REFOLD_…: settings refuse what they do not know. While a file of this name exists, samples go on.
HOLD: Final = "EVAL_PROOF_HOLD"

#: Calls from which on samples go on for ever: who is to be killed must not be done before it is.
LIMIT: Final = "EVAL_PROOF_LIMIT"

LINE_BYTES: Final = 16

WAIT_S_MIN, WAIT_S_MAX = 0.002, 0.015
HOLD_POLL_S: Final = 0.01


class NotYet(Exception):
    """Samples that fail at first do so with this."""

    code = "not_yet"


async def grade(sample: dict[str, Any], context: EvalContext) -> dict[str, int]:
    position = int(sample["n"])
    write_down(position, context.attempt)
    while _held():  # noqa: ASYNC110 - it is another process that lets go
        await asyncio.sleep(HOLD_POLL_S)
    chance = random.Random(f"{position}/{context.attempt}")
    await asyncio.sleep(chance.uniform(WAIT_S_MIN, WAIT_S_MAX))
    if fails_first(position) and context.attempt == 1:
        raise NotYet(f"sample {position} fails at first")
    return expected(position, context.params["seed"])


def _held() -> bool:
    hold, limit = os.environ.get(HOLD), os.environ.get(LIMIT)
    if hold is not None and Path(hold).exists():
        return True
    return limit is not None and calls(Path(os.environ[BOOK])) > int(limit)


def write_down(position: int, attempt: int) -> None:
    line = f"{position} {attempt}".ljust(LINE_BYTES - 1) + "\n"
    book = os.open(os.environ[BOOK], os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    try:
        os.write(book, line.encode())
    finally:
        os.close(book)


def calls(book: Path) -> int:
    """How often the runner was called until now."""
    try:
        return book.stat().st_size // LINE_BYTES
    except FileNotFoundError:
        return 0


def read_book(book: Path) -> list[tuple[int, int]]:
    """(position, attempt) of every call."""
    found: list[tuple[int, int]] = []
    if not book.exists():
        return found
    for line in book.read_text().splitlines():
        position, attempt = line.split()
        found.append((int(position), int(attempt)))
    return found
