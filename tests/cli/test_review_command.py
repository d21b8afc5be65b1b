"""``refold review`` on a real broker with a worker: what waits, why, what a ruling leaves in the journal."""

from __future__ import annotations

import json
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from client.worker_process import refold, worker
from refold.cli.main import run
from refold.client import sync
from refold.settings import Settings
from refold.testing.kafka import Kafka

pytestmark = [pytest.mark.broker, pytest.mark.slow]

SECRET = "the customer's own words"


@pytest.fixture(scope="module")
def prefix(kafka: Kafka, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    name = f"review-{uuid.uuid4().hex[:8]}"
    refold(kafka.bootstrap, name, "topology", "apply", "--partitions", "3")
    with worker(kafka.bootstrap, name, tmp_path_factory.mktemp("workers"), "w-0"):
        yield name


@pytest.fixture
def rf(kafka: Kafka, prefix: str) -> Iterator[sync.Refold]:
    with sync.Refold(Settings(topic_prefix=prefix), bootstrap=kafka.bootstrap) as made:
        yield made


Review = Callable[..., tuple[int, dict[str, Any] | None, str]]


@pytest.fixture
def review(kafka: Kafka, prefix: str, capsys: pytest.CaptureFixture[str]) -> Review:
    def call(*args: str) -> tuple[int, dict[str, Any] | None, str]:
        """Exit code, the JSON object if any, and everything on both streams."""
        capsys.readouterr()
        code = run(["review", *args, "--bootstrap", kafka.bootstrap, "--prefix", prefix])
        captured = capsys.readouterr()
        last = captured.out.splitlines()[-1] if captured.out.strip() else ""
        return code, json.loads(last) if "--json" in args and code == 0 else None, captured.out + captured.err

    return call


def made(rf: sync.Refold, kind: str, operation: str = "pay-1", *, tenant: str | None = None) -> str:
    """A session with one call that waits."""
    name = f"s-{uuid.uuid4().hex[:6]}"
    s = rf.session(name, tenant=tenant)
    intent = {
        "operation_id": operation,
        "tool": "pay",
        "arguments": json.dumps({"note": SECRET}),
        "effect": "external",
        "call_id": "c1",
        "approval_required": kind == "approval",
    }
    s.publish("ToolCallIntended", intent)
    if kind == "approval":
        last = s.publish("ToolCallApprovalRequested", {"operation_id": operation, "reason": "above 100"})
    else:
        s.publish(
            "ToolCallStarted",
            {"operation_id": operation, "attempt": 1, "holder": "runner-7", "lease_ms": 1000},
        )
        last = s.publish(
            "ToolCallOutcomeUnknown", {"operation_id": operation, "attempt": 1, "reason": "no answer"}
        )
    assert last.ruling().accepted
    return name


def state_of(rf: sync.Refold, session: str) -> dict[str, Any]:
    view = rf.session(session).state()
    assert view is not None
    (row,) = view.data["tools"]
    return dict(row)


def journal_of(rf: sync.Refold, session: str) -> list[Any]:
    """The session's events."""

    async def read() -> list[Any]:
        return [event async for event in rf.session(session)._session.events()]

    return rf._open().run(read())


def test_list_shows_what_waits_and_never_what_was_said(rf: sync.Refold, review: Review) -> None:
    unknown, approval = made(rf, "unknown"), made(rf, "approval", "pay/2#x")
    other = made(rf, "unknown", tenant="other")
    code, found, text = review("list", "--json")
    assert code == 0
    assert found is not None
    assert SECRET not in text
    here = {(i["session"], i["kind"], i["operation_id"], i["tenant"], i["reason"]) for i in found["items"]}
    assert here >= {
        (unknown, "unknown", "pay-1", "default", "no answer"),
        (approval, "approval", "pay/2#x", "default", "above 100"),
        (other, "unknown", "pay-1", "other", "no answer"),
    }
    assert [i["since_ms"] for i in found["items"]] == sorted(i["since_ms"] for i in found["items"])
    for options, expected in (
        (("--session", approval), [approval]),
        (("--tenant", "other", "--session", other), [other]),
        (("--kind", "approval", "--session", unknown), []),
        (("--tool", "fly"), []),
    ):
        _, found, _ = review("list", *options, "--json")
        assert found is not None
        assert [i["session"] for i in found["items"]] == expected
    code, _, text = review("list", "--session", unknown)
    assert "1 waiting: unknown 1" in text
    code, _, text = review("list", "--session", "nowhere")
    assert (code, text) == (0, "nothing waits\n")
    _, _, text = review("list", "--limit", "1")
    assert "showing 1 of" in text


def test_show_tells_the_key_the_history_and_how_to_rule(rf: sync.Refold, review: Review) -> None:
    session = made(rf, "unknown")
    code, found, text = review("show", session, "pay-1", "--json")
    assert code == 0
    assert found is not None
    assert (found["key"], found["holder"], found["reason"]) == ("pay-1/1", "runner-7", "no answer")
    assert [h["event"] for h in found["history"]] == [
        "ToolCallIntended",
        "ToolCallStarted",
        "ToolCallOutcomeUnknown",
    ]
    assert SECRET not in text
    _, _, text = review("show", session, "pay-1")
    assert f"refold review resolve {session} pay-1 --done RESULT | --failed REASON | --not-done" in text
    assert SECRET not in text
    _, _, text = review("show", session, "pay-1", "--arguments")
    assert SECRET in text


@pytest.mark.parametrize(
    ("kind", "options", "state", "event"),
    [
        ("unknown", ("--done", "paid"), "done", "ToolCallCompleted"),
        ("unknown", ("--failed", "never arrived"), "failed", "ToolCallFailed"),
        ("unknown", ("--not-done", "--yes"), "intended", "ToolCallReconciled"),
        ("approval", ("--approve",), "intended", "ToolCallApproved"),
        ("approval", ("--deny",), "denied", "ToolCallDenied"),
    ],
)
def test_a_ruling_is_in_the_journal_with_who_and_why(
    rf: sync.Refold,
    review: Review,
    kafka: Kafka,
    prefix: str,
    capsys: pytest.CaptureFixture[str],
    kind: str,
    options: tuple[str, ...],
    state: str,
    event: str,
) -> None:
    """Goal: the event, the operator as its actor, the reason; the item leaves the list; not twice."""
    session = made(rf, kind)
    code, found, text = review(
        "resolve", session, "pay-1", *options, "--reason", "asked the bank", "--by", "ada", "--json"
    )
    assert code == 0, text
    assert found is not None
    assert (found["ruling"], found["by"]) == (options[0].strip("-").replace("-", "_"), "ada")
    assert state_of(rf, session)["state"] == state
    last = journal_of(rf, session)[-1]
    assert (last.seq, last.type) == (found["seq"], event)
    assert (last.envelope.actor.kind, last.envelope.actor.id) == ("user", "ada")
    assert "asked the bank" in json.dumps(last.payload, default=str)
    assert (
        run(["session", "events", session, "--payload", "--bootstrap", kafka.bootstrap, "--prefix", prefix])
        == 0
    )
    printed = capsys.readouterr().out.splitlines()[-1]
    assert "by user ada" in printed
    assert "asked the bank" in printed
    _, found, _ = review("list", "--session", session, "--json")
    assert found == {"total": 0, "by_kind": {}, "items": []}
    code, _, text = review("resolve", session, "pay-1", *options, "--by", "bob")
    assert code == 66
    assert f"does not wait for a person any more: it is {state}" in text


def test_not_done_asks_first(rf: sync.Refold, review: Review) -> None:
    session = made(rf, "unknown")
    code, _, text = review("resolve", session, "pay-1", "--not-done")
    assert code == 64
    assert "will run again" in text
    assert state_of(rf, session)["state"] == "unknown"


def test_the_default_operator_is_the_login(
    rf: sync.Refold, review: Review, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("getpass.getuser", lambda: "login-name")
    session = made(rf, "approval")
    _, found, _ = review("resolve", session, "pay-1", "--approve", "--json")
    assert found is not None
    assert found["by"] == "login-name"

    def nobody() -> str:
        raise KeyError

    monkeypatch.setattr("getpass.getuser", nobody)
    code, _, text = review("resolve", session, "pay-1", "--approve")
    assert (code, "add --by NAME" in text) == (64, True)


@pytest.mark.parametrize(
    ("options", "code", "said"),
    [
        (("list", "--kind", "odd"), 64, "there are unknown, approval and run"),
        (("show", "nowhere", "pay-1"), 66, "does not exist"),
        (("show", "{unknown}", "pay-9"), 66, "holds no call 'pay-9'"),
        (("resolve", "{unknown}", "pay-1", "--approve"), 64, "rule --done or --failed or --not-done"),
        (("resolve", "{approval}", "pay-1", "--done", "x"), 64, "rule --approve or --deny"),
        (("resolve", "{unknown}", "pay-1"), 64, "rule exactly one way"),
        (("resolve", "{unknown}", "pay-1", "--done", "x", "--failed", "y"), 64, "rule exactly one way"),
        (("resolve", "{unknown}", "pay-1", "--done", "x", "--by", "b" * 300), 64, "1 to 247 bytes"),
        (("resolve", "{unknown}", "pay-1", "--failed", "x" * 2000), 64, "--failed is longer than 1024"),
    ],
)
def test_wrong_calls(rf: sync.Refold, review: Review, options: tuple[str, ...], code: int, said: str) -> None:
    names = {kind: made(rf, kind) for kind in ("unknown", "approval") if f"{{{kind}}}" in options}
    got, _, text = review(*(option.format(**names) if "{" in option else option for option in options))
    assert got == code, text
    assert said in text
    assert "Traceback" not in text


def waiting_run(rf: sync.Refold) -> str:
    """A session with one run whose step failed for good."""
    name = f"s-{uuid.uuid4().hex[:6]}"
    s = rf.session(name)
    by = {"run_id": "r-1", "holder": "agent-3", "epoch": 1}
    started = {"name": "publish", "inputs": [], "effect": "external"}
    s.publish("RunStarted", {"run_id": "r-1", "agent": "report", "input": SECRET.encode()})
    s.publish("RunLeased", {**by, "lease_ms": 60_000, "version": "v7"})
    s.publish("StepStarted", {**by, **started, "step_id": "publish", "attempt": 1})
    failed = {"code": "rejected", "error": "the site said no", "retryable": False}
    last = s.publish("StepFailed", {**by, **failed, "step_id": "publish", "attempt": 1})
    assert last.ruling().accepted
    return name


def test_a_run_is_listed_shown_and_ruled_on(rf: sync.Refold, review: Review) -> None:
    """In the list beside the calls; retried once, failed the next time; then it waits no more."""
    session = waiting_run(rf)
    _, found, _ = review("list", "--session", session, "--kind", "run", "--json")
    assert found is not None
    item = found["items"][0]
    assert (item["kind"], item["operation_id"], item["tool"]) == ("run", "r-1", "report")
    assert item["reason"] == "rejected: the site said no"
    _, told, _ = review("show", session, "r-1", "--json")
    assert told is not None
    assert [(s["step"], s["state"], s["why"]) for s in told["steps"]] == [
        ("publish", "failed", "the site said no")
    ]
    _, _, text = review("show", session, "r-1")
    assert f"refold review resolve {session} r-1 --retry | --fail" in text
    assert SECRET not in text
    code, _, text = review("resolve", session, "r-1", "--retry", "--fail")
    assert (code, "rule exactly one way" in text) == (64, True)
    code, made_ready, text = review("resolve", session, "r-1", "--retry", "--by", "ada", "--json")
    assert code == 0, text
    assert made_ready is not None
    assert (made_ready["ruling"], made_ready["by"]) == ("retry", "ada")
    view = rf.session(session).state(min_seq=made_ready["seq"])
    assert view is not None
    assert [(run["state"], run["reason"]) for run in view.runs] == [("ready", "review")]
    _, found, _ = review("list", "--session", session, "--json")
    assert found is not None
    assert found["total"] == 0
    code, _, text = review("resolve", session, "r-1", "--fail")
    assert (code, "holds no run 'r-1' that waits for a person" in text) == (66, True)


def test_without_the_topic_it_says_what_to_do(
    kafka: Kafka, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    code = run(["review", "list", "--bootstrap", kafka.bootstrap, "--prefix", "no-such"])
    assert code == 78
    assert "`refold topology apply`" in capsys.readouterr().err
