"""``docs/guides/tools.md`` as printed: every Python block, in order, in one program, on a real broker; and
the commands of ``docs/operating/review.md``."""

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

GUIDE = ROOT / "docs/guides/tools.md"
REVIEW = ROOT / "docs/operating/review.md"

#: The console blocks' option names stand for themselves; what they are given does not matter here.
OPTION = re.compile(r"(?<!\S)--[a-z][\w-]*")


async def execute(code: str, page: Path, number: int, names: dict[str, Any]) -> None:
    """One block, with ``await`` at its top as the page has it."""
    compiled = compile(
        code, f"{page.name} block {number}", "exec", ast.PyCF_ALLOW_TOP_LEVEL_AWAIT, dont_inherit=True
    )
    made = eval(compiled, names)
    if inspect.iscoroutine(made):
        await made


@pytest.mark.broker
@pytest.mark.slow
async def test_every_block_runs_as_printed(kafka: Kafka, tmp_path: Path) -> None:
    """Goal: the page's own assertions hold."""
    prefix = f"guide-{uuid.uuid4().hex[:8]}"
    refold(kafka.bootstrap, prefix, "topology", "apply", "--partitions", "2")
    found = blocks(GUIDE.read_text("utf-8"), "python")
    assert len(found) == 10
    assert sum(code.count("assert") for code in found) > 12
    with worker(kafka.bootstrap, prefix, tmp_path, "w-0"):
        async with Refold(Settings(topic_prefix=prefix), bootstrap=kafka.bootstrap) as rf:
            names: dict[str, Any] = {"rf": rf, "session": rf.session("chat-17"), "__name__": "guide"}
            for number, code in enumerate(found, 1):
                await execute(code, GUIDE, number, names)


def test_the_review_page_names_commands_that_exist(capsys: pytest.CaptureFixture[str]) -> None:
    lines = [line for block in blocks(REVIEW.read_text("utf-8"), "console") for line in block.splitlines()]
    assert len(lines) == 12
    for line in lines:
        assert line.startswith("refold review "), line
        verb = line.split()[2]
        assert run(["review", verb, "--help"]) == 0
        help_text = capsys.readouterr().out
        for option in OPTION.findall(line):
            assert re.search(rf"{option}\b", help_text), line
