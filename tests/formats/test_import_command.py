"""``refold import`` without a broker: what is published, in which order, and what is reported."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import refold.client
from refold.cli.main import run
from refold.core.envelope import Actor, SessionLink
from refold.errors import TransientError

from .support import recorded


class FakeCluster:
    """Stands for the SDK: keeps events per session, absorbs repeated ids, refuses what a test tells it to."""

    def __init__(self) -> None:
        self.sessions: dict[str, list[dict[str, Any]]] = {}
        self.refuse: set[str] = set()
        self.fail_after: int | None = None
        self.published = 0
        self.no_worker = False
        self.open_now = 0
        self.open_max = 0

    def client(self, settings: Any, *, tenant: str | None = None) -> FakeClient:
        return FakeClient(self)


class FakeClient:
    def __init__(self, cluster: FakeCluster) -> None:
        self._cluster = cluster

    async def __aenter__(self) -> FakeClient:
        return self

    async def __aexit__(self, *_: object) -> None:
        return None

    def session(self, name: str) -> FakeSession:
        return FakeSession(self._cluster, name)


class FakeSession:
    def __init__(self, cluster: FakeCluster, name: str) -> None:
        self._cluster = cluster
        self._name = name

    async def state(self, *, min_seq: int) -> Any:
        if self._cluster.no_worker:
            raise TransientError("no worker answers")
        if self._name not in self._cluster.sessions:
            return None
        events = self._cluster.sessions[self._name]
        return SimpleNamespace(children=[e["payload"] for e in events if e["type"] == "ChildLinked"])

    async def events(self) -> AsyncIterator[Any]:
        for event in self._cluster.sessions[self._name]:
            yield SimpleNamespace(event_id=event["event_id"])

    async def publish(self, type_: str, payload: dict[str, Any], **options: Any) -> Any:
        cluster = self._cluster
        cluster.open_now += 1
        cluster.open_max = max(cluster.open_max, cluster.open_now)
        await asyncio.sleep(0)
        cluster.open_now -= 1
        if cluster.fail_after is not None and cluster.published >= cluster.fail_after:
            raise TransientError("the broker went away")
        cluster.published += 1
        known = cluster.sessions.setdefault(self._name, [])
        status, code = "accepted", None
        if any(event["event_id"] == options["event_id"] for event in known):
            status = "duplicate"
        elif type_ in cluster.refuse:
            status, code = "rejected", "bad_value"
        else:
            known.append({"type": type_, "payload": payload, **options})
        ruling = SimpleNamespace(status=status, code=code, reason="because" if code else None, seq=len(known))

        async def ruled(timeout: float) -> Any:
            return ruling

        return SimpleNamespace(ruling=ruled)


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch) -> FakeCluster:
    made = FakeCluster()
    monkeypatch.setattr(refold.client, "Refold", made.client)
    return made


def _import(capsys: pytest.CaptureFixture[str], *args: object) -> tuple[int, dict[str, Any], str]:
    code = run(["import", *map(str, args), "--json"])
    shown = capsys.readouterr()
    lines = shown.out.strip().splitlines()
    return code, json.loads(lines[-1]) if lines else {}, shown.err


def test_a_dry_run_sends_nothing(cluster: FakeCluster, capsys: pytest.CaptureFixture[str]) -> None:
    code, result, _ = _import(capsys, recorded("oasst/en_100_tree.0-44.jsonl"), "--dry-run")
    assert (code, result["conversations"], result["messages"], result["sent"]) == (0, 45, 495, 0)
    assert cluster.published == 0


def test_importing_twice_sends_nothing_the_second_time(
    cluster: FakeCluster, capsys: pytest.CaptureFixture[str]
) -> None:
    """All formats at once; the second run finds every event in its session."""
    files = [
        recorded(f"claude-code/{name}") for name in ("50a7220d.jsonl", "50a7220d-subagent-a21e2f5.jsonl")
    ]
    files.append(recorded("tau-bench/gpt-4o-airline.trials0-1.jsonl.gz"))
    code, first, _ = _import(capsys, *files, "--session-prefix", "x-")
    assert code == 0
    # 100 sessions with two events of their own and 2658 messages; 7 and 19 records with an opening each, and
    # the parent's word of its child.
    assert first["accepted"] == first["events"] == first["sent"] == 2858 + 8 + 20 + 1
    assert (first["tool_calls"], first["tool_results"]) == (574, 574)
    code, second, _ = _import(capsys, *files, "--session-prefix", "x-")
    assert (code, second["sent"], second["already_there"]) == (0, 0, first["events"])


def test_events_are_published_in_order_as_what_they_are(
    cluster: FakeCluster, capsys: pytest.CaptureFixture[str]
) -> None:
    """Prefix on the session and on the link's other end, times and actors of the source, order kept."""
    files = [recorded("claude-code/50a7220d-subagent-a21e2f5.jsonl")]
    _import(capsys, *files, "--session-prefix", "x-", "--concurrency", 3)
    parent = "x-50a7220d-7250-46f3-b38e-b716ce25032e"
    name = f"{parent}.a21e2f5"
    assert list(cluster.sessions) == [name, parent]
    ((linked,), events) = cluster.sessions[parent], cluster.sessions[name]
    assert (linked["type"], linked["payload"]) == (
        "ChildLinked",
        {"session": name, "kind": "child", "call": "toolu_01KA6NusiEvFaq72v4Rgv3T3"},
    )
    assert [event["type"] for event in events][:3] == ["SessionOpened", "MessageAppended", "MessageAppended"]
    assert events[0]["link"] == SessionLink("child", parent, None, "toolu_01KA6NusiEvFaq72v4Rgv3T3")
    assert [event["actor"] for event in events[1:3]] == [Actor("user"), Actor("assistant")]
    assert events[1]["event_time_ms"] == 1770501887646  # 2026-02-07T22:04:47.646Z
    numbers = [
        json.loads(e["payload"]["extra"])["$refold"]["n"] for e in events if e["type"] == "MessageAppended"
    ]
    assert numbers == sorted(numbers)


def test_sessions_are_written_side_by_side(cluster: FakeCluster, capsys: pytest.CaptureFixture[str]) -> None:
    """``--concurrency`` bounds how many; one keeps them one after another."""
    _import(capsys, recorded("oasst/en_100_tree.0-44.jsonl"), "--concurrency", 4)
    assert cluster.open_max == 4
    cluster.open_max = 0
    _import(capsys, recorded("tau2/whissle-airline_run1.sims0-19.jsonl.gz"), "--concurrency", 1)
    assert cluster.open_max == 1


def test_rejections_are_counted_and_make_the_command_fail(
    cluster: FakeCluster, capsys: pytest.CaptureFixture[str]
) -> None:
    cluster.refuse.add("SourceRecordKept")
    code, result, err = _import(capsys, recorded("oasst/en_100_tree.0-44.jsonl"))
    assert code == 65
    assert (result["rejected"], result["accepted"]) == (45, 540)
    assert len(result["rejections"]) == 20
    assert result["rejections"][0]["code"] == "bad_value"
    assert "bad_value: because" in err


def test_a_failure_is_one_error_and_the_import_can_go_on(
    cluster: FakeCluster, capsys: pytest.CaptureFixture[str]
) -> None:
    """The first cause is reported, not a group of consequences; running again sends only what is missing."""
    path = recorded("oasst/en_100_tree.0-44.jsonl")
    cluster.fail_after = 100
    code, result, err = _import(capsys, path)
    assert (code, result) == (75, {})
    assert "error: the broker went away" in err
    assert "Traceback" not in err
    cluster.fail_after = None
    code, result, _ = _import(capsys, path)
    assert (code, result["already_there"], result["sent"]) == (0, 100, 485)


def test_without_a_worker_it_says_how_to_go_on(
    cluster: FakeCluster, capsys: pytest.CaptureFixture[str]
) -> None:
    cluster.no_worker = True
    path = recorded("oasst/en_100_tree.0-44.jsonl")
    code, _, err = _import(capsys, path)
    assert code == 69
    assert "--durable" in err
    code, result, _ = _import(capsys, path, "--durable")
    assert (code, result["sent"], result["accepted"]) == (0, 585, 0)


def test_surrogates_and_unknown_formats(
    cluster: FakeCluster, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """D25 at the command line, and what an unknown file says."""
    path = tmp_path / "a.jsonl"
    path.write_text('{"messages": [{"role": "user", "content": "x\\ud83d"}]}', "utf-8")
    code, _, err = _import(capsys, path)
    assert code == 65
    assert "lone_surrogate: a.jsonl line 1" in err
    code, result, _ = _import(capsys, path, "--replace-surrogates")
    assert (code, result["replaced_surrogates"]) == (0, 1)
    path.write_text('{"secret": "swordfish"}', "utf-8")
    code, _, err = _import(capsys, path)
    assert code == 64
    assert '{"secret": "string"}' in err
    assert "swordfish" not in err
    assert _import(capsys, path, "--format", "nope")[0] == 64
    assert _import(capsys, path, "--session-prefix", "a/")[0] == 64
    assert _import(capsys, tmp_path / "none.jsonl")[0] == 66
