"""A fixed journal whose fold never changes: the bytes of the state are a promise to every stored state.

The history is tests/golden/session_history.json: the inbox records (hex) with their append times, the rulings
and the SHA-256 of journal and state after each. If this test fails, the fold or an encoding changed:
existing states would differ from the fold of their journal. Either undo it, or it is a new snapshot version
with a migration; then write the file anew with ``python -m core.golden`` (in tests/) and say why.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from refold.core import initial

from .build import SESSION, TENANT, Inbox
from .golden import GOLDEN, play

HISTORY: list[dict[str, Any]] = json.loads(GOLDEN.read_text(encoding="utf-8"))["records"]


def test_the_golden_history_folds_to_the_same_bytes() -> None:
    inbox = Inbox(initial(TENANT, SESSION))
    inbox.check = False
    for number, record in enumerate(HISTORY):
        ruling, journal, state = play(inbox, bytes.fromhex(record["value"]), record["append_ms"])
        assert ruling == record["ruling"], number
        assert journal == record["journal"], number
        assert state == record["state"], number


def test_the_golden_history_covers_every_type_and_ruling() -> None:
    from refold.core.types import IMPLEMENTED_TYPES, WORKER_TYPES
    from refold.wire.envelope import decode_envelope

    types = {decode_envelope(bytes.fromhex(r["value"])).type for r in HISTORY}
    assert types >= IMPLEMENTED_TYPES - WORKER_TYPES
    kinds = {r["ruling"].split("(")[0] for r in HISTORY}
    assert kinds == {"Accepted", "Duplicate", "Rejected", "Parked"}


def test_the_file_is_ours_and_small(tmp_path: Path) -> None:
    """Made by golden.py alone: making it again gives the same file."""
    from .golden import write

    write(tmp_path / "again.json")
    assert (tmp_path / "again.json").read_bytes() == GOLDEN.read_bytes()
    assert len(GOLDEN.read_bytes()) < 200_000


def test_a_changed_record_is_noticed() -> None:
    """The comparison can fail: one millisecond in one record changes the digests from there on."""
    inbox = Inbox(initial(TENANT, SESSION))
    inbox.check = False
    for number, record in enumerate(HISTORY[:6]):
        shift = 1 if number == 2 else 0
        _, journal, state = play(inbox, bytes.fromhex(record["value"]), record["append_ms"] + shift)
        same = (journal, state) == (record["journal"], record["state"])
        assert same == (number < 2), number
