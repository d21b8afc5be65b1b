"""Claude Code transcripts:

what becomes a message, which follows which, and how sub-agents hang on their call.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from refold.formats.export import export_session
from refold.formats.jsonio import first_difference
from refold.formats.sources import Reading, SourceSession
from refold.formats.sources.claude_code import AROUND_BYTES_MAX, ClaudeCode

from .support import read, recorded, through_bytes


def _record(kind: str, uuid: str, parent: str | None, content: Any, **more: Any) -> dict[str, Any]:
    message: dict[str, Any] = {"role": kind, "content": content}
    if "mid" in more:
        message = {"id": more.pop("mid"), "type": "message", "model": "claude-x", **message}
    return {
        "type": kind, "uuid": uuid, "parentUuid": parent, "sessionId": "s1", "isSidechain": False,
        "timestamp": "2026-02-07T22:04:44.409Z", "message": message, **more,
    }  # fmt: skip


def _use(call: str, prompt: str = "x") -> dict[str, Any]:
    return {"type": "tool_use", "id": call, "name": "Task", "input": {"prompt": prompt}}


def _result(call: str) -> dict[str, Any]:
    return {"type": "tool_result", "tool_use_id": call, "content": "ok"}


def _sessions(path: Path, records: list[dict[str, Any]]) -> list[SourceSession]:
    path.write_text("\n".join(json.dumps(record) for record in records), "utf-8")
    sessions = list(ClaudeCode().read(path, Reading()))
    exported = export_session([through_bytes(event) for s in sessions for event in s.events])
    assert first_difference(records, exported) is None
    return sessions


def _parents(session: SourceSession) -> dict[str, str | None]:
    return {
        e.payload["message_id"]: e.payload["parent_id"] for e in session.events if e.type == "MessageAppended"
    }


def test_parallel_results_beside_each_other_stay_on_the_path(tmp_path: Path) -> None:
    """Results hang on their own call's record: taken literally all but one would leave the active path."""
    (session,) = _sessions(
        tmp_path / "a.jsonl",
        [
            _record("user", "u1", None, "go"),
            _record("assistant", "a1", "u1", [_use("t1")], mid="msg_1"),
            _record("assistant", "a2", "a1", [_use("t2")], mid="msg_1"),
            _record("user", "r1", "a1", [_result("t1")]),
            _record("assistant", "a3", "a2", [_use("t3")], mid="msg_1"),
            _record("user", "r2", "a2", [_result("t2")]),
            _record("user", "r3", "a3", [_result("t3")]),
            _record("assistant", "a4", "r3", [{"type": "text", "text": "done"}], mid="msg_2"),
        ],
    )
    assert set(_parents(session).values()) == {None}


def test_an_edit_is_a_branch_and_a_compaction_a_new_root(tmp_path: Path) -> None:
    """Another user message under an old record branches there; null after a boundary record begins anew."""
    boundary = {
        "type": "system",
        "uuid": "b",
        "parentUuid": None,
        "sessionId": "s1",
        "subtype": "compact_boundary",
    }
    (session,) = _sessions(
        tmp_path / "a.jsonl",
        [
            _record("user", "u1", None, "go"),
            _record("assistant", "a1", "u1", [{"type": "text", "text": "x"}], mid="m1"),
            _record("user", "u2", "a1", "no"),
            _record("user", "u3", "a1", "other"),
            boundary,
            _record("user", "u4", "b", "summary", isCompactSummary=True),
            {"type": "progress", "uuid": "p", "parentUuid": "u4", "sessionId": "s1"},
            _record("user", "u5", "p", "on"),
        ],
    )
    assert _parents(session) == {"u1": None, "a1": None, "u2": None, "u3": "a1", "u4": "", "u5": None}


def test_a_chain_inside_the_file_is_a_child_of_its_call(tmp_path: Path) -> None:
    """Older versions write the sub-agent into the main file; its first message is the call's prompt."""
    side = {"isSidechain": True}
    main, child = _sessions(
        tmp_path / "a.jsonl",
        [
            _record("user", "u1", None, "go"),
            _record("assistant", "a1", "u1", [_use("t1", "dig")], mid="m1"),
            _record("user", "c1", None, "dig", **side),
            _record("assistant", "c2", "c1", [{"type": "text", "text": "found"}], mid="m2", **side),
            _record("user", "r1", "a1", [_result("t1")]),
        ],
    )
    assert (main.session, child.session) == ("s1", "s1.side-c1")
    link = child.events[0].link
    assert link is not None
    assert (link.kind, link.session, link.call) == ("child", "s1", "t1")
    assert list(_parents(main)) == ["u1", "a1", "r1"]


def test_a_sub_agents_file_finds_the_call_in_its_neighbour() -> None:
    """The parent's transcript says which call started the agent."""
    (child,) = read(recorded("claude-code/50a7220d-subagent-a21e2f5.jsonl"))
    (parent,) = read(recorded("claude-code/50a7220d.jsonl"))
    link = child.events[0].link
    assert link is not None
    assert (link.kind, link.session, link.call) == ("child", parent.session, "toolu_01KA6NusiEvFaq72v4Rgv3T3")
    assert child.session == f"{parent.session}.a21e2f5"


def test_a_sub_agents_file_is_found_in_claude_codes_own_layout(tmp_path: Path) -> None:
    """<session>.jsonl beside <session>/subagents/agent-<id>.jsonl; without the parent the call is unknown."""
    agent = tmp_path / "s1" / "subagents" / "agent-abc.jsonl"
    agent.parent.mkdir(parents=True)
    records = [_record("user", "c1", None, "dig", isSidechain=True, agentId="abc")]
    (alone,) = _sessions(agent, records)
    assert alone.events[0].link is not None
    assert alone.events[0].link.call is None
    answer = _record("user", "r1", "a1", [_result("t9")], toolUseResult={"agentId": "abc"})
    _sessions(tmp_path / "s1.jsonl", [_record("assistant", "a1", None, [_use("t9")]), answer])
    (child,) = _sessions(agent, records)
    assert child.events[0].link is not None
    assert child.events[0].link.call == "t9"


def test_records_that_are_no_messages_are_kept_in_place(tmp_path: Path) -> None:
    """Queue operations, progress, summaries, messages of an unknown form: kept, and never in the context."""
    records = [
        {"type": "summary", "summary": "s", "leafUuid": "x"},
        {"type": "queue-operation", "operation": "dequeue", "sessionId": "s1"},
        _record("user", "u1", None, "go"),
        {"type": "user", "uuid": "odd", "parentUuid": "u1", "sessionId": "s1", "message": "text"},
    ]
    (session,) = _sessions(tmp_path / "a.jsonl", records)
    kept = [event.payload["note"] for event in session.events if event.type == "SourceRecordKept"]
    assert kept == ["summary", "queue-operation", "user"]


def test_a_large_record_around_a_message_is_kept_beside_it(tmp_path: Path) -> None:
    """Tool outputs repeated in ``toolUseResult`` must not fill the context window."""
    record = _record(
        "user", "r1", None, [_result("t1")], toolUseResult={"file": "x" * (AROUND_BYTES_MAX * 20)}
    )
    (session,) = _sessions(tmp_path / "a.jsonl", [record])
    (body,) = [event.payload for event in session.events if event.type == "MessageAppended"]
    assert len(body["extra"]) < AROUND_BYTES_MAX
    assert [e.payload["note"] for e in session.events if e.type == "SourceRecordKept"] == ["around"]


def test_one_model_message_over_several_records_keeps_its_id() -> None:
    """``message.id`` is the group: the context shows the records as one message."""
    path = recorded("claude-code/30530d66.jsonl")
    records = [json.loads(line) for line in path.read_text("utf-8").splitlines()]
    (session,) = read(path)
    bodies = [event.payload for event in session.events if event.type == "MessageAppended"]
    ids = [record["message"].get("id") for record in records if "message" in record]
    assert [body["group_id"] for body in bodies] == ids
    assert len(set(ids)) < len([one for one in ids if one])
