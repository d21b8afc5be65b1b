"""Points armed by a file: the harness chooses the moment, the worker says what it held."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

#: A process that commits twice: the file appears between the two.
PROGRAM = """
import sys
from pathlib import Path
from refold.engine.points import COMMIT, Points
points = Points.from_environment()
file, spec = Path(sys.argv[1]), sys.argv[2]
for number in range(2):
    if number == 1 and spec:
        file.write_text(spec)
    points.begin(10 + number)
    for name in COMMIT:
        if name == "in_commit":
            with points.during(name):
                pass
        else:
            points.reach(name)
        print(number, name, flush=True)
"""


def run(file: Path, spec: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", PROGRAM, str(file), spec],
        env={**os.environ, "REFOLD_POINT_FILE": str(file)},
        capture_output=True,
        text=True,
        check=False,
        timeout=180,
    )


@pytest.mark.parametrize(
    ("point", "last"),
    [("after_begin", "0 after_write_batch"), ("after_produce", "1 after_send_offsets")],
)
def test_the_commit_after_the_file_dies_at_the_point(tmp_path: Path, point: str, last: str) -> None:
    """Goal: exactly that step of the next commit. Method: exit there, look at the last step that was left."""
    file = tmp_path / "w.point"
    result = run(file, f"{point}:exit")
    assert result.returncode == 70, result.stderr
    assert result.stdout.splitlines()[-1] == last
    assert json.loads((tmp_path / "w.point.hit").read_text()) == {"point": point, "events": 11}
    assert not file.exists()


def test_a_killed_process_leaves_the_note_too(tmp_path: Path) -> None:
    result = run(tmp_path / "w.point", "after_produce:kill")
    assert result.returncode == -9
    assert json.loads((tmp_path / "w.point.hit").read_text())["point"] == "after_produce"


def test_without_a_file_nothing_happens(tmp_path: Path) -> None:
    result = run(tmp_path / "w.point", "")
    assert result.returncode == 0, result.stderr
    assert len(result.stdout.splitlines()) == 12
    assert not (tmp_path / "w.point.hit").exists()
