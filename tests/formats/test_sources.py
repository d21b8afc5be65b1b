"""Every recorded set:

its counts, its way back value by value, and the ids that make a second import a no-op.
"""

from __future__ import annotations

import gzip
import json
import re
from pathlib import Path
from typing import Any

import pytest

from refold.errors import InvalidRecord, NotFound, StorageError, UsageError
from refold.formats.counts import Counts
from refold.formats.export import export_session
from refold.formats.jsonio import first_difference
from refold.formats.sources import SOURCES, Reading, detect, source_named
from refold.formats.sources.base import place_id, session_id, time_of
from refold.formats.sources.files import documents

from .support import DATA, SUPPORTED, read, recorded, through_bytes

#: SOURCES.md's units -> the fields of Counts. Events, steps and branch points are not ours to count.
UNITS = {
    "conversations": "conversations",
    "messages": "messages",
    "tool calls": "tool_calls",
    "tool results": "tool_results",
}


def _table() -> dict[str, dict[str, int]]:
    """SOURCES.md's counts by file, for the units an import has."""
    text = recorded("SOURCES.md").read_text("utf-8")
    found: dict[str, dict[str, int]] = {}
    folder = ""
    for line in text.splitlines():
        if line.startswith("## "):
            folder = line[3:].strip().rstrip("/")
        row = re.match(r"\| `([^`]+)` \|.*\| ([^|]*) \| [^|]* \|$", line)
        if row:
            pairs = re.findall(r"(\d+) ([a-z ]+)", row[2])
            found[f"{folder}/{row[1]}"] = {UNITS[unit]: int(n) for n, unit in pairs if unit in UNITS}
    return found


@pytest.mark.parametrize("name", SUPPORTED)
def test_counts_equal_the_list_of_sources(name: str) -> None:
    """Counted from our events alone; the two conventions that differ are in ``refold.formats.counts``."""
    wanted = _table()[name]
    assert {"conversations", "messages"} <= wanted.keys()
    counts = Counts()
    for session in read(recorded(name)):
        counts.add_session((event.type, event.payload) for event in session.events)
    expected = {"tool_calls": 0, "tool_results": 0, **wanted}
    assert {unit: getattr(counts, unit) for unit in expected} == expected


def test_every_file_of_a_supported_set_is_in_the_list() -> None:
    """A file added to a set we support must be covered, or be named here with the reason it is not."""
    unsupported = {
        "openhands/multi_swe_bench-output.line1.jsonl": "event history, no messages",
        "openhands/traj-basic.jsonl": "event history, no messages",
        "openhands/sdk-goal-events.jsonl": "event history, no messages",
    }
    folders = {name.split("/")[0] for name in SUPPORTED}
    listed = {name for name in _table() if name.split("/")[0] in folders}
    assert listed == {*SUPPORTED, *unsupported}
    for name in unsupported:
        with pytest.raises(UsageError, match="no format refold knows"):
            detect(recorded(name))


@pytest.mark.parametrize("name", SUPPORTED)
def test_the_export_is_the_import_value_by_value(name: str) -> None:
    """Import, encode with the schemas, decode, export: every value of the file, in order, nothing else."""
    path = recorded(name)
    sessions = read(path)
    if detect(path).name == "claude-code":  # One file may hold several sessions: they make the file together.
        exported = export_session(through_bytes(event) for s in sessions for event in s.events)
    else:
        exported = [doc for s in sessions for doc in export_session(through_bytes(e) for e in s.events)]
    source = [document.value for document in documents(path, Reading())]
    assert first_difference(source, exported) is None


@pytest.mark.parametrize("name", SUPPORTED)
def test_importing_twice_publishes_the_same_ids(name: str, tmp_path: Path) -> None:
    """The ids do not depend on the place of the file;

    they are unique, and no id says anything about content.
    """
    path = recorded(name)
    copy = tmp_path / path.name
    copy.write_bytes(path.read_bytes())
    first = [(s.session, [e.event_id for e in s.events]) for s in read(path)]
    # A sub-agent's link is looked up beside its file; the copy has no neighbours, so its opening event
    # differs.
    second = [(s.session, [e.event_id for e in s.events]) for s in read(copy)]
    skip = 1 if "subagent" in name else 0
    assert [(s, ids[skip:]) for s, ids in second] == [(s, ids[skip:]) for s, ids in first]
    for _, ids in first:
        assert len(set(ids)) == len(ids)
        assert all(re.fullmatch("import-[0-9a-f]{32}", one) for one in ids)
    assert len({session for session, _ in first}) == len(first)


@pytest.mark.parametrize("name", SUPPORTED)
def test_the_format_is_told_from_the_content(name: str) -> None:
    """One clear winner per file, and naming the format reads the same."""
    path = recorded(name)
    source = detect(path)
    head = [document.value for document in documents(path, Reading())][:20]
    others = [one.detect(head) for one in SOURCES.values() if one is not source]
    assert source.detect(head) > max(others)


@pytest.mark.parametrize("folder", ["star", "taskmaster", "abcd", "crosswoz", "xpersona", "stream-chunks"])
def test_an_unknown_format_says_what_it_saw_and_what_it_expected(folder: str) -> None:
    """Shape only: keys and types, none of the file's text."""
    if not DATA.exists():
        pytest.skip("no shared data")
    path = min((DATA / folder).iterdir())
    with pytest.raises(UsageError) as caught:
        detect(path)
    text = str(caught.value)
    assert all(f"  {source.name}: {source.expects}" in text for source in SOURCES.values())
    shown = text.split("looks like:\n")[1].split("\n")[0]
    value = next(document.value for document in documents(path, Reading()))
    texts = [one for one in _texts(value) if len(one) > 12]
    assert texts
    assert not [one for one in texts if one in shown]


def _texts(value: Any) -> list[str]:
    if isinstance(value, dict):
        return [text for item in value.values() for text in _texts(item)]
    if isinstance(value, list):
        return [text for item in value for text in _texts(item)]
    return [value] if isinstance(value, str) else []


CHAT = {"messages": [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "yes"}], "id": 1}


def _write(path: Path, text: str, packed: bool = False) -> Path:
    data = text.encode("utf-8")
    path.write_bytes(gzip.compress(data) if packed else data)
    return path


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize(
    "text",
    [
        json.dumps(CHAT) + "\n\n" + json.dumps(CHAT) + "\n",
        json.dumps([CHAT, CHAT]),
        json.dumps([CHAT, CHAT], indent=2),
        "\ufeff" + json.dumps(CHAT) + "\r\n" + json.dumps(CHAT),
    ],
)
def test_lines_arrays_gzip_and_marks_read_alike(text: str, packed: bool, tmp_path: Path) -> None:
    """JSON Lines with blank lines, one array, a pretty one, a byte order mark, CRLF;

    plain or gzip by content.
    """
    path = _write(tmp_path / "chats.data", text, packed)
    sessions = read(path)
    assert len(sessions) == 2
    assert sessions[0].session != sessions[1].session
    assert [doc for s in sessions for doc in export_session([through_bytes(e) for e in s.events])] == [
        CHAT,
        CHAT,
    ]


def test_a_bare_list_per_line_is_one_conversation(tmp_path: Path) -> None:
    path = _write(tmp_path / "a.jsonl", json.dumps(CHAT["messages"]) + "\n" + json.dumps(CHAT["messages"]))
    assert detect(path).name == "openai-list"
    sessions = read(path)
    assert [export_session([through_bytes(e) for e in s.events]) for s in sessions] == [
        [CHAT["messages"]]
    ] * 2


def test_anthropic_requests_keep_their_system_prompt(tmp_path: Path) -> None:
    """It is a message of the session (the context needs it) and comes back at its own place."""
    document = {
        "model": "claude-x",
        "system": [{"type": "text", "text": "be brief", "cache_control": {"type": "ephemeral"}}],
        "messages": [
            {"role": "user", "content": "hi"},
            {
                "role": "assistant",
                "content": [{"type": "tool_use", "id": "toolu_1", "name": "f", "input": {}}],
            },
            {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "toolu_1", "content": "ok"}]},
        ],
    }
    path = _write(tmp_path / "a.jsonl", json.dumps(document))
    assert detect(path).name == "anthropic"
    (session,) = read(path)
    roles = [event.payload["role"] for event in session.events if event.type == "MessageAppended"]
    assert roles == ["system", "user", "assistant", "tool"]
    assert export_session([through_bytes(event) for event in session.events]) == [document]


def test_a_changed_line_is_another_session_not_a_conflict(tmp_path: Path) -> None:
    """Two files of one name, or one edited in between, never fold into each other."""
    path = _write(tmp_path / "a.jsonl", json.dumps(CHAT))
    (before,) = read(path)
    (after,) = read(_write(path, json.dumps({**CHAT, "id": 2})))
    assert before.session != after.session
    assert before.session.startswith("a.0.")


def test_a_grown_tree_adds_only_what_is_new(tmp_path: Path) -> None:
    """Documents with their own id keep their session:

    old messages keep their ids, the new frame is the last one.
    """

    def tree(extra: list[Any]) -> dict[str, Any]:
        reply = {"message_id": "b", "parent_id": "a", "text": "y", "role": "assistant", "replies": []}
        prompt = {"message_id": "a", "text": "x", "role": "prompter", "replies": [reply, *extra]}
        return {"message_tree_id": "t", "tree_state": f"{len(extra)} more", "prompt": prompt}

    new = {"message_id": "c", "parent_id": "a", "text": "z", "role": "assistant", "replies": []}
    path = _write(tmp_path / "a.jsonl", json.dumps(tree([])))
    (before,) = read(path)
    (after,) = read(_write(path, json.dumps(tree([new]))))
    assert before.session == after.session
    known = {event.event_id for event in before.events}
    added = [event for event in after.events if event.event_id not in known]
    assert [event.type for event in added] == ["SourceRecordKept", "MessageAppended"]
    assert added[1].payload["parent_id"] == "a"
    assert export_session([through_bytes(event) for event in [*before.events, *added]]) == [tree([new])]


@pytest.mark.parametrize(
    ("text", "code", "where"),
    [
        (json.dumps(CHAT) + "\n{oops\n", "bad_json", "line 2"),
        (
            json.dumps(CHAT) + '\n{"messages": [{"role": "user", "content": "\\ud83d"}]}',
            "lone_surrogate",
            "line 2",
        ),
        (json.dumps(CHAT) + '\n{"messages": [{"content": "x"}]}', "bad_message", "document 1, message 0"),
        (json.dumps(CHAT) + '\n{"messages": 1}', "bad_message", "document 1"),
        (json.dumps(CHAT) + "\n[1]", "bad_message", "document 1"),
        (json.dumps(CHAT) + '\n{"messages": [], "x": NaN}', "bad_json", "line 2"),
    ],
)
def test_damage_names_its_line(text: str, code: str, where: str, tmp_path: Path) -> None:
    """What came before is yielded; the error has file, line and code, and none of the content."""
    path = _write(tmp_path / "a.jsonl", text)
    sessions = SOURCES["openai"].read(path, Reading())
    next(sessions)
    with pytest.raises(InvalidRecord, match=f"a.jsonl {where}") as caught:
        list(sessions)
    assert caught.value.code == code


def test_surrogates_are_replaced_when_asked(tmp_path: Path) -> None:
    """D25: refused by default, replaced by U+FFFD and counted with the flag; pairs and NUL stay."""
    text = '{"messages": [{"role": "user", "content": "a\\ud83d \\ud83d\\ude00 \\u0000"}]}'
    path = _write(tmp_path / "a.jsonl", text)
    with pytest.raises(InvalidRecord, match="line 1"):
        list(SOURCES["openai"].read(path, Reading()))
    reading = Reading(replace_surrogates=True)
    (session,) = SOURCES["openai"].read(path, reading)
    assert session.events[-1].payload["content"][0].text == "a\ufffd \U0001f600 \0"
    assert reading.replaced == 1


def test_missing_empty_and_damaged_files_say_so(tmp_path: Path) -> None:
    with pytest.raises(NotFound, match="no file"):
        detect(tmp_path / "none.jsonl")
    with pytest.raises(UsageError, match="empty"):
        detect(_write(tmp_path / "empty.jsonl", "\n\n"))
    cut = tmp_path / "cut.jsonl.gz"
    cut.write_bytes(gzip.compress(json.dumps(CHAT).encode())[:-8])
    with pytest.raises(StorageError, match="gzip"):
        detect(cut)
    with pytest.raises(UsageError, match="tau2"):
        source_named("nope")


@pytest.mark.parametrize(
    ("value", "milliseconds"),
    [
        ("2026-07-31T01:29:51.967653", 1785461391968),
        ("2026-02-07T22:04:44.409Z", 1770501884409),
        ("2026-02-07T23:04:44.409+01:00", 1770501884409),
        (1714585031.148505, 1714585031149),
        ("yesterday", 0),
        (None, 0),
        (True, 0),
        (1e18, 0),
    ],
)
def test_times_are_the_same_in_every_zone(
    value: Any, milliseconds: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """D27: a time without a zone is UTC whatever TZ says."""
    for zone in ("UTC", "Asia/Shanghai", "America/St_Johns"):
        monkeypatch.setenv("TZ", zone)
        assert time_of(value) == milliseconds


def test_session_ids_are_bounded_and_have_no_slash() -> None:
    assert session_id("a/b") == "a_b"
    long = session_id("ä" * 500)
    assert len(long.encode()) <= 256
    assert long != session_id("ä" * 501)
    assert place_id(Path("x y.jsonl.gz"), 3, {}).startswith("x_y.3.")


def test_recorded_files_are_all_there() -> None:
    """The list above is not silently skipped where the data is at hand."""
    if DATA.exists():
        assert [name for name in SUPPORTED if not (DATA / name).exists()] == []
