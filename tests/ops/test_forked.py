"""Forked commands are processes like others: output, environment, exit codes, signals, sessions."""

from __future__ import annotations

import os
import signal
import subprocess
from pathlib import Path

import pytest

import forked
from refold.errors import UsageError

#: A quarter of a second, and once the imports.
ENDED_S_MAX = 120.0


def test_a_command_says_what_it_says_and_ends_with_its_code(tmp_path: Path) -> None:
    (tmp_path / "refold.toml").write_text('topic_prefix = "of-this-directory"\n')
    environment = {**os.environ, "REFOLD_WORKER__INSTANCE": "of-this-environment"}
    told = forked.run([*forked.REFOLD, "settings"], env=environment, timeout=ENDED_S_MAX, cwd=tmp_path)
    assert told.returncode == 0, told.stderr
    assert "of-this-directory" in told.stdout
    assert "of-this-environment" in told.stdout
    plain = forked.run([*forked.REFOLD, "settings"], env=os.environ, timeout=ENDED_S_MAX)
    assert plain.returncode == 0, plain.stderr
    assert "of-this" not in plain.stdout, "nothing is left of a former one"
    wrong = forked.run([*forked.REFOLD, "nothing"], env=os.environ, timeout=ENDED_S_MAX)
    assert (wrong.returncode, wrong.stdout) == (UsageError.exit_code, "")
    assert "nothing" in wrong.stderr


def test_it_is_stopped_killed_and_waited_for_by_its_pid(tmp_path: Path) -> None:
    command = [*forked.REFOLD, "registry", "serve", "--port", "0"]
    with (tmp_path / "log").open("ab") as log:
        process = forked.popen(
            command, env=os.environ, stdout=log, stderr=subprocess.STDOUT, start_new_session=True
        )
        beside = forked.popen(command, env=os.environ, stdout=log, stderr=subprocess.STDOUT)
    assert isinstance(process, forked.Forked)
    assert len({process.pid, beside.pid, os.getpid()}) == 3
    with pytest.raises(subprocess.TimeoutExpired):
        process.wait(0.01)
    process.send_signal(signal.SIGSTOP)
    process.kill()
    assert process.wait(ENDED_S_MAX) == -signal.SIGKILL
    assert beside.poll() is None
    beside.kill()
    assert beside.wait(ENDED_S_MAX) == -signal.SIGKILL
    with pytest.raises(ProcessLookupError):
        os.kill(process.pid, 0)


@pytest.mark.parametrize("ours_too", [False, True])
def test_what_the_interpreter_reads_when_it_starts_is_not_forked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ours_too: bool
) -> None:
    """Goal: also where the test has changed its own environment, as those with modules of their own do."""
    path = f"{tmp_path}{os.pathsep}{os.environ.get('PYTHONPATH', '')}"
    environment = {**os.environ, "PYTHONPATH": path}
    if ours_too:
        monkeypatch.setenv("PYTHONPATH", path)
    with (tmp_path / "log").open("ab") as log:
        process = forked.popen([*forked.REFOLD, "--version"], env=environment, stdout=log, stderr=log)
    assert not isinstance(process, forked.Forked)
    assert process.wait(ENDED_S_MAX) == 0
    assert (tmp_path / "log").read_text().startswith("refold ")
