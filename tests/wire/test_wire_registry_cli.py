"""``refold registry``: what it prints, its exit codes, and that it stops when told to."""

from __future__ import annotations

import json
import signal
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import httpx
import pytest

from refold.cli import main
from refold.wire.schemalock import read_lock
from refold.wire.schemas import registry
from wire.support import SchemaDir

REFOLD = (
    [sys.executable, "-m", "refold"]
    if (Path(main.__file__).parents[1] / "__main__.py").exists()
    else [
        sys.executable,
        "-c",
        "from refold.cli.main import main; main()",
    ]
)


def run(capsys: pytest.CaptureFixture[str], *args: str) -> tuple[int, dict[str, Any], str]:
    """(exit code, the JSON object, stderr) of one command with --json."""
    code = main.run(["registry", *args, "--json"])
    out, err = capsys.readouterr()
    lines = out.splitlines()
    assert len(lines) <= 1
    return code, json.loads(lines[0]) if lines else {}, err


def test_check_passes_on_the_installed_schemas(capsys: pytest.CaptureFixture[str]) -> None:
    code, answer, _ = run(capsys, "check")
    assert code == 0
    assert answer == {
        "ok": True,
        "subjects": len(registry().subjects),
        "versions": len(registry().entries),
        "drift": [],
        "incompatibilities": [],
    }


def test_check_exits_1_on_drift_and_lock_refuses_to_pin_it(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    directory = SchemaDir(tmp_path)
    schema = directory.read("event/fact_set/v1.avsc")
    schema["fields"].pop()
    directory.write("event/fact_set/v1.avsc", schema)
    code, answer, err = run(capsys, "check", "--schemas", str(directory.root))
    assert code == 1
    assert answer["ok"] is False
    assert [(d["kind"], d["subject"]) for d in answer["drift"]] == [("changed", "refold.event.FactSet")]
    assert "add a new version instead" in err
    before = (directory.root / "schemas.lock.json").read_bytes()
    code, _, err = run(capsys, "lock", "--schemas", str(directory.root))
    assert code == 78
    assert "error: refold.event.FactSet version 1" in err
    assert (directory.root / "schemas.lock.json").read_bytes() == before


def test_check_and_lock_refuse_an_incompatible_version(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    directory = SchemaDir(tmp_path)
    schema = directory.read("event/fact_set/v1.avsc")
    schema["fields"].append({"name": "scope", "type": "string", "doc": "Scope."})
    directory.write("event/fact_set/v2.avsc", schema)
    directory.add_version("refold.event.FactSet", 2, "event/fact_set/v2.avsc")
    code, answer, _ = run(capsys, "check", "--schemas", str(directory.root))
    assert code == 1
    assert [d["kind"] for d in answer["drift"]] == ["not_locked"]
    assert [
        (f["rule"], f["path"], f["old_version"], f["new_version"]) for f in answer["incompatibilities"]
    ] == [("added_without_default", "refold.event.FactSet.scope", 1, 2)]
    code, _, err = run(capsys, "lock", "--schemas", str(directory.root))
    assert code == 78
    assert "Give it a default" in err


def test_lock_appends_new_versions_once(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    directory = SchemaDir(tmp_path)
    before = read_lock(directory.root)
    schema = directory.read("event/fact_set/v1.avsc")
    schema["fields"].append({"name": "scope", "type": "string", "default": "", "doc": "Scope."})
    directory.write("event/fact_set/v2.avsc", schema)
    directory.add_version("refold.event.FactSet", 2, "event/fact_set/v2.avsc")
    code, answer, _ = run(capsys, "lock", "--schemas", str(directory.root))
    assert code == 0
    assert answer["added"] == [{"subject": "refold.event.FactSet", "version": 2, "id": before[-1].id + 1}]
    assert read_lock(directory.root)[:-1] == before
    assert run(capsys, "lock", "--schemas", str(directory.root))[1]["added"] == []
    assert run(capsys, "check", "--schemas", str(directory.root))[0] == 0


def test_list_names_every_subject(capsys: pytest.CaptureFixture[str]) -> None:
    code, answer, _ = run(capsys, "list")
    assert code == 0
    assert {row["subject"]: row["id"] for row in answer["subjects"]} == {
        e.subject: e.id for e in registry().entries
    }
    assert "refold.event.RunReady" in answer["reserved"]
    assert main.run(["registry", "list"]) == 0
    assert "refold.SessionSnapshot" in capsys.readouterr().out


def test_register_needs_a_registry(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("REFOLD_REGISTRY_URL", raising=False)
    code, _, err = run(capsys, "register")
    assert code == 64
    assert "--url" in err
    code, _, err = run(capsys, "register", "--url", "http://127.0.0.1:9")
    assert code == 69
    assert "does not answer" in err


def test_serve_refuses_to_listen_for_everybody_by_accident(capsys: pytest.CaptureFixture[str]) -> None:
    code, _, err = run(capsys, "serve", "--host", "0.0.0.0")
    assert code == 64
    assert "--allow-insecure-remote" in err


def test_serve_names_a_port_in_use(capsys: pytest.CaptureFixture[str]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        code, _, err = run(capsys, "serve", "--port", str(taken.getsockname()[1]))
    assert code == 78
    assert "choose another --port" in err
    assert "Traceback" not in err


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_serve_answers_until_told_to_stop(number: signal.Signals) -> None:
    """One JSON line when it is ready, exit 0 when stopped."""
    process = subprocess.Popen(
        [*REFOLD, "registry", "serve", "--port", "0", "--prefix", "app", "--json"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        assert process.stdout is not None
        answer = json.loads(process.stdout.readline())
        assert answer["schemas"] == len(registry().entries)
        latest = httpx.get(f"{answer['url']}/subjects/app.state-value/versions/latest").json()
        assert latest["id"] == registry().get("refold.SessionSnapshot").id
        process.send_signal(number)
        out, err = process.communicate(timeout=20)
    finally:
        process.kill()
        process.wait()
    assert (process.returncode, out) == (0, ""), err
