"""A side-chain transcript is a child session: linked to its parent's call, and back as it was."""

from __future__ import annotations

from typing import Any

from refold.core.rulings import Accepted, Duplicate
from refold.formats.export import export_session
from refold.formats.jsonio import first_difference
from refold.formats.sources import Reading, SourceSession
from refold.formats.sources.files import documents

from .folding import Folded
from .support import read, recorded, through_bytes

PARENT = "claude-code/50a7220d.jsonl"
CHILD = "claude-code/50a7220d-subagent-a21e2f5.jsonl"


def folded(source: SourceSession, *first: Any) -> Folded:
    made = Folded(source.session)
    for event in [*first, *source.events]:
        assert isinstance(made.add(event), Accepted), event.type
    return made


def test_a_recorded_side_chain_is_a_child_of_its_parents_call() -> None:
    """Imported in either order: the child names parent and call, the parent names the child, and the call is
    one of the parent's."""
    (parent,), (child,) = read(recorded(PARENT)), read(recorded(CHILD))
    assert child.belongs is not None
    assert child.parent == parent.session
    for before in ((), (child.belongs,)):
        family = folded(parent, *before)
        again = family.add(child.belongs)
        assert isinstance(again, Duplicate if before else Accepted)
        (row,) = family.state.children
        assert (row.session, row.kind) == (child.session, "child")
        assert row.call in {call.call_id for call in family.state.calls.values()}
        link = folded(child).state.link
        assert link is not None
        assert (link.kind, link.session, link.call) == ("child", parent.session, row.call)


def test_parent_and_child_are_exported_as_they_were() -> None:
    """Value by value, and what the parent's journal says of the child is not in its transcript."""
    (child,) = read(recorded(CHILD))
    assert child.belongs is not None
    for name in (PARENT, CHILD):
        (source,) = read(recorded(name))
        events = [through_bytes(event) for event in source.events]
        if name == PARENT:
            events.insert(0, through_bytes(child.belongs))
            events.append(through_bytes(child.belongs))
        exported = export_session(events, "source")
        original = [document.value for document in documents(recorded(name), Reading())]
        assert first_difference(original, exported) is None


def test_ids_of_the_link_repeat() -> None:
    """Importing the file again is the same event, so it is linked once."""
    (first,), (second,) = read(recorded(CHILD)), read(recorded(CHILD))
    assert first.belongs == second.belongs
    (parent,) = read(recorded(PARENT))
    assert parent.belongs is None
