"""Logs: JSON or console, other libraries' records alike, never a payload and never a secret."""

from __future__ import annotations

import io
import json
import logging
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest
import structlog

from refold.errors import ConfigError
from refold.telemetry import logging as ours

SECRET_TEXT = "Dear Sir, my account number is 4711"


@pytest.fixture(autouse=True)
def restored() -> Iterator[None]:
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    yield
    root.handlers[:], root.level = handlers, level
    structlog.reset_defaults()


def lines(fmt: str = "json", level: str = "info") -> io.StringIO:
    stream = io.StringIO()
    ours.configure(fmt=fmt, level=level, stream=stream)
    return stream


def only(stream: io.StringIO) -> dict[str, Any]:
    (line,) = stream.getvalue().splitlines()
    value: dict[str, Any] = json.loads(line)
    return value


def test_an_event_is_one_json_object() -> None:
    stream = lines()
    with ours.bound(partition=3):
        structlog.get_logger("refold.x").info("commit_done", events=7)
    row = only(stream)
    assert (row["event"], row["events"], row["partition"], row["level"], row["logger"]) == (
        "commit_done",
        7,
        3,
        "info",
        "refold.x",
    )
    assert row["timestamp"].endswith("Z")


def test_other_libraries_take_the_same_way() -> None:
    stream = lines()
    logging.getLogger("somelib").warning("thing %s happened", 3)
    row = only(stream)
    assert (row["event"], row["logger"], row["level"]) == ("thing 3 happened", "somelib", "warning")


def test_faust_is_quiet_below_warnings() -> None:
    stream = lines()
    logging.getLogger("faust.worker").info("banner")
    assert stream.getvalue() == ""


@pytest.mark.parametrize("fmt", ["json", "console"])
def test_payload_and_secrets_never_appear(fmt: str) -> None:
    """As keyword, nested, as bytes, as another library's extra, in an exception's text and in its locals."""
    stream = lines(fmt)
    log = structlog.get_logger("refold.x")
    log.info(
        "a",
        payload=SECRET_TEXT,
        content=[SECRET_TEXT],
        raw=SECRET_TEXT.encode(),
        nested={"text": SECRET_TEXT},
    )
    log.info("b", sasl_password=SECRET_TEXT, bearer_token=SECRET_TEXT, headers={"Authorization": SECRET_TEXT})
    logging.getLogger("lib").warning("c", extra={"body": SECRET_TEXT})
    try:
        text_of_a_user = SECRET_TEXT
        raise KeyError(text_of_a_user)
    except KeyError:
        log.exception("d")
    assert "Dear Sir" not in stream.getvalue()
    assert "4711" not in stream.getvalue()
    assert "KeyError" in stream.getvalue()
    assert "test_logs.py:" in stream.getvalue()


def test_an_error_of_ours_keeps_its_text_and_its_cause() -> None:
    stream = lines()
    try:
        try:
            raise FileNotFoundError(2, "No such file", "/etc/x")
        except OSError as err:
            raise ConfigError("mount the secret") from err
    except ConfigError:
        structlog.get_logger("refold.x").exception("failed")
    first, second = only(stream)["exception"]
    assert (first["type"], first["text"]) == ("ConfigError", "mount the secret")
    assert "/etc/x" in second["text"]


def test_a_recursion_is_cut() -> None:
    stream = lines()

    def deeper(n: int) -> None:
        if n == 0:
            raise ArithmeticError("end")
        deeper(n - 1)

    try:
        deeper(200)
    except ArithmeticError:
        structlog.get_logger("refold.x").exception("failed")
    assert len(only(stream)["exception"][0]["frames"]) <= 30


def test_long_values_are_cut() -> None:
    stream = lines()
    structlog.get_logger("refold.x").info("a", path="x" * 10_000)
    assert len(stream.getvalue()) < 1_000


def test_level() -> None:
    stream = lines(level="warning")
    structlog.get_logger("refold.x").info("hidden")
    structlog.get_logger("refold.x").warning("shown")
    assert only(stream)["event"] == "shown"


@pytest.mark.parametrize(
    ("environment", "terminal", "is_json"), [("dev", True, False), ("prod", True, True), ("dev", False, True)]
)
def test_auto_is_a_console_only_on_a_developers_terminal(
    environment: str, terminal: bool, is_json: bool
) -> None:
    class Stream(io.StringIO):
        def isatty(self) -> bool:
            return terminal

    stream = Stream()
    ours.configure(environment=environment, stream=stream)
    structlog.get_logger("refold.x").info("a")
    assert stream.getvalue().startswith("{") is is_json


def test_no_color(monkeypatch: pytest.MonkeyPatch) -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    monkeypatch.setenv("NO_COLOR", "1")
    stream = Terminal()
    ours.configure(fmt="console", stream=stream)
    structlog.get_logger("refold.x").info("a")
    assert "\x1b" not in stream.getvalue()


@pytest.mark.parametrize("fmt", ["json", "console"])
def test_an_id_forges_no_line_and_moves_no_cursor(monkeypatch: pytest.MonkeyPatch, fmt: str) -> None:
    """Goal: a producer chooses its ids; who looks at a worker's terminal sees them and does not run them."""
    monkeypatch.setenv("NO_COLOR", "1")
    stream = lines(fmt)
    structlog.get_logger("refold.x").info("quarantined", session="\x1b[2J\n2026 [error] forged\r")
    logging.getLogger("lib").warning("of %s", "\x1b[2J\nforged")
    assert not set(stream.getvalue()) & set("\x1b\r")
    assert len(stream.getvalue().splitlines()) == 2


def test_a_worker_logs_without_loading_rich() -> None:
    """structlog is loaded as where rich is not installed; who asks for rich afterwards gets it."""
    code = (
        "import sys; from refold.telemetry.plain import load_structlog; load_structlog()\n"
        "import structlog, refold.telemetry.logging\n"
        "assert structlog.dev.rich is None and 'rich' not in sys.modules, 'loaded'\n"
        "import rich; load_structlog()\n"
        "print(rich.__name__)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=False, timeout=60
    )
    assert (done.returncode, done.stdout.strip()) == (0, "rich"), done.stderr
