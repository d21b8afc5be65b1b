"""`refold session fold` compares a stored state with the fold of the journal."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

from core.build import SESSION, TENANT, Inbox, event, message
from refold.cli.session_fold import compare
from refold.core import fold, initial, reducers
from refold.core.reducers import Reducer
from refold.reducers.event import viewer
from refold.wire.snapshot import decode_session, encode_snapshot

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


def test_parts_of_reducers_are_compared_where_they_can_be() -> None:
    """Goal: a wrong part is a difference, an upcast one is none, and what is left out is counted by name."""
    inbox, left_out = Inbox(), Counter[str]()
    try:
        for version, upcast in ((1, {}), (2, {1: lambda state: {"messages": state["n"]}})):
            field = "n" if version == 1 else "messages"
            count = lambda s, _e, field=field: {field: s.get(field, 0) + 1}  # noqa: E731
            one = Reducer("count", version, frozenset({"MessageAppended"}), b"{}", count, upcast)
            reducers.install(reducers.Registry([one], viewer({})))
            if version == 1:
                inbox.ok(message("u1"), message("u2"))
                stored = encode_snapshot(inbox.session)
        folded = fold(initial(TENANT, SESSION), inbox.entries())
        assert compare(stored, folded, left_out) is None
        assert left_out == {}
        wrong = decode_session(stored)
        wrong.reduced["count"].state, wrong.enc_tail = b'{"n":3}', None
        assert str(compare(encode_snapshot(wrong), folded)).startswith("$.reduced")
    finally:
        reducers.install(None)
    assert compare(stored, fold(initial(TENANT, SESSION), inbox.entries()), left_out) is None
    assert left_out == {"count": 1}
