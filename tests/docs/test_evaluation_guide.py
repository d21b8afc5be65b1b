"""``docs/guides/evaluation.md`` as printed: its files, its commands with their exit codes, its assertions."""

from __future__ import annotations

import re
import shlex
import sys
import uuid
from pathlib import Path

import pytest

from client.worker_process import refold
from readme.pages import ROOT, blocks
from refold.cli.main import run
from refold.testing.kafka import Kafka

GUIDE = ROOT / "docs/guides/evaluation.md"
TEXT = GUIDE.read_text("utf-8")
MODULE, ASSERTIONS = blocks(TEXT, "python")
EXIT = re.compile(r"  # exit (\d+)$")


@pytest.mark.broker
def test_the_guide_as_printed(
    kafka: Kafka, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Goal: whoever copies the page's files and commands sees what it says."""
    pytest.importorskip("pyarrow", reason="the extra eval is not installed")
    prefix = f"eval-guide-{uuid.uuid4().hex[:8]}"
    refold(kafka.bootstrap, prefix, "topology", "apply", "--partitions", "1")
    (samples,) = blocks(TEXT, "json")
    (tmp_path / "samples.jsonl").write_text(samples)
    (tmp_path / "grading.py").write_text(MODULE)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setenv("REFOLD_BOOTSTRAP", kafka.bootstrap)
    monkeypatch.setenv("REFOLD_TOPIC_PREFIX", prefix)
    (commands,) = blocks(TEXT, "console")
    said = ""
    try:
        for line in commands.splitlines():
            found = EXIT.search(line)
            words = shlex.split(line, comments=True)
            assert words[:2] == ["refold", "eval"]
            capsys.readouterr()
            assert run(words[1:]) == (int(found[1]) if found else 0), capsys.readouterr().err
            said += capsys.readouterr().out
    finally:
        sys.modules.pop("grading", None)
    (promised,) = re.findall(r"`(batch arithmetic: [^`]+)`", TEXT)
    assert promised in said
    assert (tmp_path / "results.parquet").stat().st_size > 0
    assert ASSERTIONS.count("assert") == 4
    exec(compile(ASSERTIONS, GUIDE.name, "exec"), {})


def test_exit_codes_and_rules_are_those_of_the_code() -> None:
    from refold.errors import ConfigError, FencedError, UnavailableError, UsageError
    from refold.ops.evals.run import EXIT_DONE, EXIT_FAILED, EXIT_INTERRUPTED

    named = {
        int(code) for row in re.findall(r"^\| ([\d, ]+) \|", TEXT, re.MULTILINE) for code in row.split(",")
    }
    errors = {error.exit_code for error in (UsageError, ConfigError, UnavailableError, FencedError)}
    assert named == errors | {EXIT_DONE, EXIT_FAILED, EXIT_INTERRUPTED}
    assert set(re.findall(r"\*\*(E\d)\*\*", TEXT)) == {"E1", "E2", "E3"}
