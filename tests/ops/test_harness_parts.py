"""What the harnesses share: waiting beside others, processes with a log, the end of a run's topics."""

from __future__ import annotations

import asyncio
import signal
import sys
import time
from pathlib import Path

import pytest

from refold.broker.ports import choose
from refold.errors import UnavailableError
from refold.ops.fleet import Death, DeathKind
from refold.ops.fleet.listening import ListeningProcess
from refold.ops.fleet.logged import LoggedProcess
from refold.ops.verify.beside import with_beside
from refold.ops.verify.own import DELETE_GROUP_S_MAX, leave, own_settings
from refold.settings import Settings
from refold.topology import reach

WAIT_S = 20.0


async def for_ever() -> None:
    await asyncio.Event().wait()


async def test_what_goes_on_beside_ends_with_the_main_thing() -> None:
    async def answer() -> int:
        return 7

    before = asyncio.all_tasks()
    assert await with_beside(answer(), for_ever(), for_ever()) == 7
    assert asyncio.all_tasks() == before


async def test_what_fails_beside_ends_the_main_thing_at_once() -> None:
    async def fails() -> None:
        raise UnavailableError("a worker ended")

    before = asyncio.all_tasks()
    async with asyncio.timeout(WAIT_S):
        with pytest.raises(UnavailableError, match="a worker ended"):
            await with_beside(for_ever(), for_ever(), fails())
    assert asyncio.all_tasks() == before


async def test_who_ends_beside_without_a_failure_is_not_missed() -> None:
    ended = asyncio.Event()

    async def ends() -> None:
        ended.set()

    async def answer() -> int:
        await ended.wait()
        return 7

    async with asyncio.timeout(WAIT_S):
        assert await with_beside(answer(), ends()) == 7


class Sleeper(LoggedProcess):
    def start(self, text: str) -> None:
        command = [sys.executable, "-c", f"import signal; print({text!r}, flush=True); signal.pause()"]
        self._launch(command, {})

    def says(self) -> str:
        with self.log_path.open() as log:
            log.seek(self._log_from)
            return log.read()


def test_a_process_writes_to_one_log_in_all_of_its_lives(tmp_path: Path) -> None:
    process = Sleeper("p0", tmp_path)
    assert process.log_tail() == "(no log)"
    assert not process.alive
    for life in ("first", "second"):
        process.start(life)
        try:
            deadline = time.monotonic() + WAIT_S
            while process.says() != f"{life}\n" and time.monotonic() < deadline:
                time.sleep(0.02)
            assert process.says() == f"{life}\n"
            assert process.alive
        finally:
            process.kill()
        assert process.process is not None
        assert process.process.returncode == -signal.SIGKILL
        process.signal(signal.SIGTERM)  # to nobody: no error
    assert process.log_tail() == "    first\n    second"


def test_a_server_that_says_no_port_is_quoted(tmp_path: Path) -> None:
    server = ListeningProcess("world", tmp_path, "no_such_module_here", [])
    with pytest.raises(UnavailableError, match=r"world process did not start(.|\n)*no_such_module_here"):
        server.start()
    server.stop()


async def test_a_run_leaves_at_once_where_no_broker_answers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Goal: nobody waits for librdkafka's minute, the directory goes, the error says why."""
    monkeypatch.setattr(reach, "ANSWER_SECONDS", (0.1, 0.2))
    settings = Settings()
    nowhere = settings.kafka.model_copy(update={"bootstrap": f"127.0.0.1:{choose(None)}"})
    own = own_settings(settings.model_copy(update={"kafka": nowhere}), "test", 1, 2)
    directory = tmp_path / "run"
    directory.mkdir()
    said: list[str] = []
    await leave(own, directory, said.append, keep=True)
    assert said == [f"kept: topics {own.topic_prefix}.*, data and logs in {directory}"]
    assert directory.exists()
    began = time.monotonic()
    with pytest.raises(UnavailableError, match="no broker answers"):
        await leave(own, directory, said.append, keep=False)
    assert time.monotonic() - began < DELETE_GROUP_S_MAX
    assert not directory.exists()


def test_a_death_is_told_with_its_notes() -> None:
    death = Death("w1", DeathKind.ZOMBIE, point="in_commit", events=3, at_s=4.2, fenced=True, notes=["late"])
    assert death.lines == ["     4.2 s  zombie w1 at in_commit holding 3 events; fenced", "            late"]
    assert Death("w0", DeathKind.KILL).lines == ["     0.0 s  kill w0"]
