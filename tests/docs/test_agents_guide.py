"""``docs/guides/agents.md`` as printed: every Python block, in order, in one program, on a real broker; and
that the commands it names exist."""

from __future__ import annotations

import re
from typing import Any

import pytest

from docs.test_tools_guide import execute
from readme.pages import ROOT, blocks
from refold.cli.main import run
from refold.client import Refold
from refold.settings import Settings
from refold.testing.kafka import Kafka

GUIDE = ROOT / "docs/guides/agents.md"
COMMAND = re.compile(r"`refold (run|agent) ([a-z-]+)")


@pytest.mark.broker
@pytest.mark.slow
async def test_every_block_runs_as_printed(kafka: Kafka, agents_prefix: str) -> None:
    """Goal: the page's own assertions hold."""
    found = blocks(GUIDE.read_text("utf-8"), "python")
    assert len(found) == 12
    assert sum(code.count("assert") for code in found) > 12
    async with Refold(Settings(topic_prefix=agents_prefix), bootstrap=kafka.bootstrap) as rf:
        names: dict[str, Any] = {"rf": rf, "__name__": "guide"}
        for number, code in enumerate(found, 1):
            await execute(code, GUIDE, number, names)


def test_the_page_names_commands_that_exist(capsys: pytest.CaptureFixture[str]) -> None:
    named = set(COMMAND.findall(GUIDE.read_text("utf-8")))
    assert len(named) == 7
    for noun, verb in sorted(named):
        assert run([noun, verb, "--help"]) == 0
        assert f"refold {noun} {verb}" in capsys.readouterr().out
