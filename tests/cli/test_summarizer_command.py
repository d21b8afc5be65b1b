"""``refold summarizer run``: which summarizer, what it says, how it ends. The process itself is replaced."""

from __future__ import annotations

import json
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from refold.cli.main import run
from refold.cli.summarizer import find_summarizer
from refold.client.summaries import Extractive, OpenAICompatible, process
from refold.client.summaries.configured import summarizer_of
from refold.errors import ConfigError, UsageError
from refold.settings import Settings

OWN = """
class Brief:
    name = "brief/1"
    async def summarize(self, request):
        return "so far"

brief = Brief()
nothing = object()
"""


@pytest.fixture
def own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    (tmp_path / "own_summaries.py").write_text(OWN)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "own_summaries", raising=False)
    return "own_summaries"


class Ran:
    """In the place of the process: what it was given; says two lines."""

    def __init__(self, code: int = 0) -> None:
        self.code = code
        self.given: dict[str, Any] = {}

    def __call__(self, settings: Settings, say: Any, **given: Any) -> tuple[int, Counter[str]]:
        self.given = {"settings": settings, **given}
        say("summarizer_started", {"summarizer": "x"})
        say("summary_made", {"session": "s", "code": "", "messages": 6})
        return self.code, Counter(made=1)


@pytest.fixture
def ran(monkeypatch: pytest.MonkeyPatch) -> Ran:
    made = Ran()
    monkeypatch.setattr(process, "run_process", made)
    return made


def test_it_says_what_happens_and_ends_with_the_process_status(
    ran: Ran, capsys: pytest.CaptureFixture[str]
) -> None:
    ran.code = 75
    assert run(["summarizer", "run", "--concurrency", "9", "--max-seconds", "2", "--once"]) == 75
    assert (ran.given["concurrency"], ran.given["max_seconds"], ran.given["once"]) == (9, 2.0, True)
    assert ran.given["summarizer"] is None
    shown = capsys.readouterr()
    assert shown.out.strip() == "1 made, 0 superseded, 0 nothing, 0 failed"
    assert shown.err.splitlines() == [
        "summarizer_started summarizer=x",
        "summary_made session=s messages=6",
    ]


def test_json_is_one_object_per_line(ran: Ran, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["summarizer", "run", "--json"]) == 0
    shown = capsys.readouterr()
    assert json.loads(shown.out) == {"made": 1, "superseded": 0, "nothing": 0, "failed": 0}
    lines = [json.loads(line) for line in shown.err.splitlines()]
    assert [line["event"] for line in lines] == ["summarizer_started", "summary_made"]
    assert all("timestamp" in line for line in lines)


def test_a_summarizer_of_ones_own(ran: Ran, own: str, capsys: pytest.CaptureFixture[str]) -> None:
    """An object, or a class that is called without arguments."""
    assert run(["summarizer", "run", f"{own}:brief"]) == 0
    assert ran.given["summarizer"].name == "brief/1"
    assert find_summarizer(f"{own}:Brief").name == "brief/1"
    assert run(["summarizer", "run", f"{own}:nothing"]) == UsageError.exit_code
    assert "is no summarizer" in capsys.readouterr().err


@pytest.mark.parametrize("target", ["own", "own:", ":brief", "no_such_module_here:x"])
def test_what_names_none(target: str) -> None:
    with pytest.raises(UsageError):
        find_summarizer(target)


def test_the_settings_name_one(monkeypatch: pytest.MonkeyPatch) -> None:
    assert isinstance(summarizer_of(Settings()), Extractive)
    monkeypatch.setenv("REFOLD_SUMMARIZER__PROVIDER", "openai")
    with pytest.raises(ConfigError, match=r"needs summarizer\.model"):
        Settings()
    monkeypatch.setenv("REFOLD_SUMMARIZER__MODEL", "m-1")
    monkeypatch.setenv("REFOLD_SUMMARIZER__API_KEY", "sk-very-secret")
    settings = Settings()
    made = summarizer_of(settings)
    assert isinstance(made, OpenAICompatible)
    assert made.name == "m-1"
    assert "sk-very-secret" not in repr(settings) + repr(vars(made))
    monkeypatch.setenv("REFOLD_SUMMARIZER__BASE_URL", "models.example/v1")
    with pytest.raises(ConfigError):
        Settings()
