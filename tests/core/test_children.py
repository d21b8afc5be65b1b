"""Sessions that belong to a session: ChildLinked (Y4)."""

from __future__ import annotations

import pytest

from refold.core.children import followers
from refold.core.limits import CHILDREN_BYTES_MAX, CHILDREN_MAX
from refold.core.policystate import Child
from refold.core.rulings import Accepted, Duplicate, Rejected
from refold.wire.snapshot import decode_session, decode_snapshot, encode_snapshot

from .build import TENANT, Inbox, event, message


def link(
    session: str = "c1", kind: str = "child", call: str | None = "op-1"
) -> tuple[str, dict[str, object]]:
    return event("ChildLinked", session=session, kind=kind, call=call)


def test_a_child_is_kept_and_shown() -> None:
    inbox = Inbox()
    inbox.send(message("m"))
    assert isinstance(inbox.send(link()), Accepted)
    assert isinstance(inbox.send(link("f1", "fork", None)), Accepted)
    assert inbox.session.children == [Child("c1", "child", "op-1", 2), Child("f1", "fork", None, 3)]
    assert [child.session for child in followers(inbox.session.children)] == ["c1"]
    raw = encode_snapshot(inbox.session)
    assert decode_session(raw).children == inbox.session.children
    assert decode_snapshot(raw)["children"] == [
        {"session": "c1", "kind": "child", "call": "op-1", "seq": 2},
        {"session": "f1", "kind": "fork", "call": None, "seq": 3},
    ]


def test_linked_once() -> None:
    """From any process: the same again is a repeat, another link of the same session a conflict."""
    inbox = Inbox()
    inbox.send(link())
    assert isinstance(inbox.send(link()), Duplicate)
    assert isinstance(inbox.send(link(call=None)), Duplicate)
    for other in (link(call="op-2"), link(kind="fork")):
        ruling = inbox.send(other)
        assert isinstance(ruling, Rejected)
        assert ruling.code == "conflict"


def test_a_link_learns_its_call() -> None:
    """A child imported before its parent is linked without one: once, then it stands."""
    inbox = Inbox()
    inbox.send(link(call=None))
    assert isinstance(inbox.send(link("c2")), Accepted)
    assert isinstance(inbox.send(link(call="op-9")), Accepted)
    assert [(child.session, child.call, child.seq) for child in inbox.session.children] == [
        ("c2", "op-1", 2),
        ("c1", "op-9", 3),
    ]
    assert isinstance(inbox.send(link(call="op-8")), Rejected)


@pytest.mark.parametrize(
    ("what", "code"),
    [
        (link("s1"), "bad_value"),
        (link(kind="friend"), "bad_value"),
        (link(""), "bad_id"),
        (link("x" * 257), "bad_id"),
        (link(call=""), "bad_id"),
    ],
)
def test_what_is_no_link_is_refused(what: tuple[str, dict[str, object]], code: str) -> None:
    ruling = Inbox().send(what)
    assert isinstance(ruling, Rejected)
    assert ruling.code == code


def test_a_full_list_refuses_and_forgets_nobody() -> None:
    """Who leaves the list would not be deleted with its parent."""
    inbox = Inbox()
    inbox.check = False
    for at in range(CHILDREN_MAX):
        assert isinstance(inbox.send(link(f"c{at}")), Accepted)
    ruling = inbox.send(link("one-more"))
    assert isinstance(ruling, Rejected)
    assert ruling.code == "children_full"
    assert len(inbox.session.children) == CHILDREN_MAX


def test_long_names_count_by_their_bytes() -> None:
    inbox = Inbox()
    inbox.check = False
    taken = 0
    while isinstance(inbox.send(link(f"{taken}" + "x" * 200, call="y" * 200)), Accepted):
        taken += 1
    assert taken == CHILDREN_BYTES_MAX // 433


def test_nothing_is_left_after_a_deletion() -> None:
    inbox = Inbox()
    inbox.send(link())
    held = inbox.session.children
    inbox.send(event("SessionDeleted"))
    assert inbox.session.children == []
    assert [child.session for child in held] == ["c1"]
    assert inbox.session.tenant == TENANT
