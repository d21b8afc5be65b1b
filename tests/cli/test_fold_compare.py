"""`refold session fold` compares a stored state with the fold of the journal."""

from __future__ import annotations

import json
from pathlib import Path

from core.build import Inbox, event
from refold.cli.session_fold import compare
from refold.wire.snapshot import encode_snapshot

GOLDEN = Path(__file__).parents[1] / "golden"


def test_a_state_of_an_older_version_is_no_difference_and_a_wrong_one_is() -> None:
    """After an upgrade, sessions nothing happened to still have records of the version before."""
    old = json.loads((GOLDEN / "session_states_v1.json").read_text(encoding="utf-8"))["states"][3]
    records = json.loads((GOLDEN / "session_history.json").read_text(encoding="utf-8"))["records"]
    inbox = Inbox()
    inbox.check = False
    for record in records[: old["record"] + 1]:
        inbox.put(bytes.fromhex(record["value"]), record["append_ms"])
    stored = bytes.fromhex(old["state"])
    assert stored != encode_snapshot(inbox.session)
    assert compare(stored, inbox.session) is None
    inbox.ok(event("FactSet", name="n", value="1"))
    seq = inbox.session.seq
    assert compare(stored, inbox.session) == f"$.seq: stored {seq - 1}, folded {seq}"
    inbox.session.seq -= 1
    assert "differs" in str(compare(stored, inbox.session))
