"""``docs/guides/resume-walkthrough.md`` as printed: its programs, and every command with its output, on a
real broker and worker, with processes that are really killed."""

from __future__ import annotations

import itertools
import os
import re
import signal
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from readme.pages import ROOT, blocks
from refold.testing.kafka import Kafka

GUIDE = ROOT / "docs/guides/resume-walkthrough.md"
NAME = re.compile(r"# (\w+\.py)\n")

#: Each takes a lease and a start: five seconds, on a very busy machine ten times that.
PROCESS_S_MAX = 120.0
KILLED = (-signal.SIGKILL, 128 + signal.SIGKILL)

#: A machine so busy that a process loses its lease without being killed plays another scene; it is played
#: again then.
SCENES_MAX = 3


class Stage:
    """A directory with the page's programs, and ``refold`` and ``python`` on the path."""

    def __init__(self, directory: Path, bootstrap: str, prefix: str) -> None:
        self.directory = directory
        (directory / "bin").mkdir()
        for name, command in (("refold", "-m refold.cli.main"), ("python", "")):
            file = directory / "bin" / name
            file.write_text(f'#!/bin/sh\nexec {sys.executable} {command} "$@"\n')
            file.chmod(file.stat().st_mode | stat.S_IXUSR)
        for code in blocks(GUIDE.read_text("utf-8"), "python"):
            named = NAME.match(code)
            assert named is not None
            (directory / named[1]).write_text(code)
        kept = {name: value for name, value in os.environ.items() if not name.startswith("REFOLD_")}
        self.environment = {
            **kept,
            "PATH": f"{directory / 'bin'}:{kept['PATH']}",
            "REFOLD_BOOTSTRAP": bootstrap,
            "REFOLD_TOPIC_PREFIX": prefix,
            "NO_COLOR": "1",
        }

    def start(self, command: str) -> subprocess.Popen[str]:
        # A shell that outlives the signal its command is told to end by, as one with a prompt does.
        return subprocess.Popen(
            ["bash", "-c", f"trap : TERM; {command}"],
            cwd=self.directory,
            env=self.environment,
            stdout=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )


def once(out: str) -> list[str]:
    """Lines, without briefs that say what the one before said: a process that a busy machine kept from its
    lease begins the body anew, and no step."""
    briefs = re.split(r"(?m)^(?=Task of )", out)
    kept = [brief for before, brief in itertools.pairwise(["", *briefs]) if brief != before]
    return "".join(kept).splitlines()


def end(process: subprocess.Popen[str], number: int) -> None:
    if process.poll() is None:
        os.killpg(process.pid, number)
    process.wait(PROCESS_S_MAX)


def play(stage: Stage) -> list[tuple[str, str]]:
    """Every command of the page; those whose output is another one, with what it was."""
    different = []
    asking = stage.start("python ask.py")
    try:
        for block in blocks(GUIDE.read_text("utf-8"), "console"):
            line, *expected = block.splitlines()
            process = stage.start(line.removeprefix("$ "))
            try:
                if "agent run" in line and expected[-1] != "Killed":
                    # The one that lives: it ends when it is told to, after the run has ended.
                    said, _ = asking.communicate(timeout=PROCESS_S_MAX)
                    assert said == "/page/1\n"
                    os.killpg(process.pid, signal.SIGTERM)
                out, _ = process.communicate(timeout=PROCESS_S_MAX)
            finally:
                end(process, signal.SIGKILL)
            if expected[-1] == "Killed":
                assert process.returncode in KILLED, out
                expected.pop()
            else:
                assert process.returncode == 0, out
            if once(out) != expected:
                different.append((line, out))
    finally:
        end(asking, signal.SIGKILL)
    return different


@pytest.mark.broker
@pytest.mark.slow
def test_the_page_is_what_happens(kafka: Kafka, agents_prefix: str, tmp_path: Path) -> None:
    """Goal: killed in each of its steps, the task is done; each step once, one page, the brief as shown."""
    different: list[tuple[str, str]] = []
    for scene in range(SCENES_MAX):
        directory = tmp_path / f"scene-{scene}"
        directory.mkdir()
        stage = Stage(directory, kafka.bootstrap, agents_prefix)
        stage.environment["REFOLD_TENANT"] = f"scene-{scene}"
        different = play(stage)
        if not different:
            break
        print(f"scene {scene}: {different}")
    assert different == []
