"""Every recorded conversation as imported, through the real fold: wherever it is cut, and after random edits,
regenerations, switches of branch and forks, both providers take the context, also as one of several agents
sees it.
"""

from __future__ import annotations

import random
from collections import Counter
from typing import Any

import pytest

from refold.client.operations.session_operations import fork_payload
from refold.core.rulings import Accepted, Duplicate
from refold.errors import InvalidRecord, UsageError
from refold.formats.context import render
from refold.formats.parts import text
from refold.formats.sources import SourceSession, detect
from refold.formats.transcript import transcript
from refold.formats.validate import problems
from refold.formats.views import seen_by
from refold.wire.snapshot import encode_snapshot

from .folding import Folded
from .support import DATA, SUPPORTED, read, recorded

PROVIDERS = ("openai", "anthropic")

#: Cut points of a conversation: all of them where it has no more.
CUTS = 20
#: Random changes after a conversation's end, each looked at.
CHANGES = 4
AGENTS = ("planner", "critic")
#: Of the contexts, those whose steps are looked at one by one as well.
LOOKED_AT_SHARE = 0.2

#: Recorded sets that are no conversations in messages (docs/guides/import-export.md), and token streams.
NOT_IMPORTED = (
    "abcd/",
    "anthropic-sse/",
    "crosswoz/",
    "http-cassettes/",
    "star/",
    "stream-chunks/",
    "taskmaster/",
    "xpersona/",
)


def accepted_by_both(shown: dict[str, Any], chance: random.Random, found: Counter[str]) -> None:
    """Both providers would take the context as it is, and as one of the agents among whom its assistant
    messages are dealt out sees it."""
    context = shown["context"]
    dealt = [
        {**message, "actor": chance.choice(AGENTS)} if message["role"] == "assistant" else message
        for message in context["recent_messages"]
    ]
    shared = {**shown, "context": {**context, "recent_messages": dealt}}
    agent = chance.choice(AGENTS)
    for request, name in [
        *[(render(shown, name), name) for name in PROVIDERS],
        (render(shared, seen := chance.choice(PROVIDERS), view=agent), seen),
    ]:
        if request["messages"]:
            assert problems(request, name) == []
            found["contexts"] += 1
    if chance.random() < LOOKED_AT_SHARE:
        steps = seen_by(transcript(shared), agent).steps
        assert {step.author for step in steps if step.role == "assistant"} <= {agent}
        calls = [call for step in transcript(shown).steps for call in step.calls]
        assert all(call.answered or call.stand_in for call in calls)


def change(folded: Folded, at: int, chance: random.Random, found: Counter[str]) -> None:
    """One random edit, regeneration, fork of the path or switch of branch."""
    state = folded.state
    held = [message for message in state.held.values() if message.id not in {m.id for m in state.system}]
    if not held:
        return
    target = chance.choice(held)
    kind = chance.choice(("edit", "answer", "root", "switch"))
    if kind == "switch":
        ruling = folded.append("BranchSwitched", {"head_message_id": target.id}, event_id=f"switch-{at}")
        assert isinstance(ruling, Accepted | Duplicate), ruling
    else:
        fields = {
            "edit": {"role": target.role if target.role != "tool" else "user", "replaces": target.id},
            "answer": {"role": "assistant", "parent_id": target.id},
            "root": {"role": "user", "parent_id": ""},
        }[kind]
        body = {"message_id": f"changed-{at}", "content": [text(f"changed {kind} {at}")], **fields}
        ruling = folded.append("MessageAppended", body, event_id=f"changed-{at}")
        assert isinstance(ruling, Accepted), ruling
    found[kind] += 1


def walk(session: SourceSession, chance: random.Random, found: Counter[str]) -> None:
    """One conversation: folded whole, cut, then changed; and a fork of it, made anywhere, changed too."""
    events = session.events
    count = len(events)
    cuts = set(range(count)) if count <= CUTS else {*chance.sample(range(count), CUTS), count - 1}
    fork_at = chance.randrange(count)
    folded, fork = Folded(session.session), Folded(f"{session.session}-fork")
    for at, event in enumerate(events):
        ruling = folded.add(event)
        assert isinstance(ruling, Accepted), (at, ruling)
        if at == fork_at:
            payload = fork_payload(session.session, encode_snapshot(folded.state))
            assert isinstance(fork.append("SessionForked", payload, event_id="fork"), Accepted)
            accepted_by_both(fork.snapshot(), chance, found)
        if at in cuts:
            found["cuts"] += 1
            accepted_by_both(folded.snapshot(), chance, found)
    for at in range(CHANGES):
        target = fork if at == CHANGES - 1 else folded
        change(target, at, chance, found)
        accepted_by_both(target.snapshot(), chance, found)


@pytest.mark.parametrize("name", SUPPORTED)
def test_recorded_conversations_at_random_cut_points_and_after_changes(name: str) -> None:
    """Twenty cut points each (every one of those that are shorter), and four changes. A failure repeats: the
    chances follow from the file's name."""
    chance = random.Random(name)
    found: Counter[str] = Counter()
    sessions = read(recorded(name))
    for session in sessions:
        walk(session, chance, found)
    assert found["cuts"] >= sum(min(CUTS, len(session.events)) for session in sessions)
    assert found["contexts"] >= 2 * len(sessions)


def test_no_importable_recording_is_left_out() -> None:
    """Every file of the recorded sets is in the test above, or is none that refold imports."""
    recorded(SUPPORTED[0])
    left, unread = [], []
    for path in sorted(DATA.rglob("*")):
        name = path.relative_to(DATA).as_posix()
        if not path.is_file() or name == "SOURCES.md" or name in SUPPORTED:
            continue
        try:
            source = detect(path)
        except UsageError:
            continue
        except InvalidRecord:
            # Token streams as text.
            unread.append(name)
            continue
        left.append((name, source.name))
    assert [one for one in left if not one[0].startswith(NOT_IMPORTED)] == []
    assert [name for name in unread if not name.startswith(NOT_IMPORTED)] == []
