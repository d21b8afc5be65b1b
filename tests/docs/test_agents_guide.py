"""``docs/guides/agents.md`` as printed: every Python block, in order, in one program, on a real broker; and
that the commands it names exist."""

from __future__ import annotations

import ast
import inspect
import re
import uuid
from pathlib import Path
from typing import Any

import pytest

from client.worker_process import refold, worker
from readme.pages import ROOT, blocks
from refold.cli.main import run
from refold.client import Refold
from refold.settings import Settings
from refold.testing.kafka import Kafka

GUIDE = ROOT / "docs/guides/agents.md"
COMMAND = re.compile(r"`refold (run|agent) ([a-z-]+)")


@pytest.mark.broker
@pytest.mark.slow
async def test_every_block_runs_as_printed(kafka: Kafka, tmp_path: Path) -> None:
    """Goal: the page's own assertions hold."""
    prefix = f"agents-guide-{uuid.uuid4().hex[:8]}"
    refold(kafka.bootstrap, prefix, "topology", "apply", "--partitions", "1")
    found = blocks(GUIDE.read_text("utf-8"), "python")
    assert len(found) == 12
    assert sum(code.count("assert") for code in found) > 12
    with worker(kafka.bootstrap, prefix, tmp_path, "w-0"):
        async with Refold(Settings(topic_prefix=prefix), bootstrap=kafka.bootstrap) as rf:
            names: dict[str, Any] = {"rf": rf, "__name__": "guide"}
            for number, code in enumerate(found, 1):
                compiled = compile(
                    code,
                    f"{GUIDE.name} block {number}",
                    "exec",
                    ast.PyCF_ALLOW_TOP_LEVEL_AWAIT,
                    dont_inherit=True,
                )
                made = eval(compiled, names)
                if inspect.iscoroutine(made):
                    await made


def test_the_page_names_commands_that_exist(capsys: pytest.CaptureFixture[str]) -> None:
    named = set(COMMAND.findall(GUIDE.read_text("utf-8")))
    assert len(named) == 7
    for noun, verb in sorted(named):
        assert run([noun, verb, "--help"]) == 0
        assert f"refold {noun} {verb}" in capsys.readouterr().out
