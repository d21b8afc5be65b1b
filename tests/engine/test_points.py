"""Named points: parsing, counting, and that an unarmed one does nothing. (Deaths:
tests/ops/test_pointfile.py.)"""

from __future__ import annotations

import json
import threading
from pathlib import Path

import pytest

from engine.cluster import wait_for
from refold.engine.points import COMMIT, NAMES, Points
from refold.errors import ConfigError, InvariantViolation


@pytest.mark.parametrize(
    "spec",
    ["after_begin", "nowhere:kill", "after_begin:explode", "after_begin:kill:0", "after_begin:kill:x:1"],
)
def test_a_wrong_spec_is_refused_with_the_names(spec: str) -> None:
    with pytest.raises(ConfigError, match="after_begin, after_send_offsets"):
        Points(spec)


@pytest.mark.parametrize("action", ["raise", "hold"])
def test_inside_a_call_nothing_can_be_raised_or_held(action: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="in_commit"):
        Points(f"in_commit:{action}", tmp_path / "p")


def test_hold_needs_a_file_to_be_released_by() -> None:
    with pytest.raises(ConfigError, match="REFOLD_POINT_FILE"):
        Points("after_begin:hold")


def test_the_nth_time_counts_and_it_acts_once(tmp_path: Path) -> None:
    points = Points("after_produce:raise:3", tmp_path / "p")
    points.begin(7)
    for _ in range(2):
        for name in COMMIT:
            points.reach(name)
    with pytest.raises(InvariantViolation, match="after_produce"):
        points.reach("after_produce")
    points.reach("after_produce")
    assert json.loads((tmp_path / "p.hit").read_text()) == {"point": "after_produce", "events": 7}


def test_hold_waits_for_the_release(tmp_path: Path) -> None:
    points = Points("after_begin:hold", tmp_path / "p")
    thread = threading.Thread(target=points.reach, args=["after_begin"])
    thread.start()
    wait_for("the hold", (tmp_path / "p.hit").exists)
    assert thread.is_alive()
    (tmp_path / "p.release").touch()
    thread.join(60)
    assert not thread.is_alive()


def test_unarmed_points_do_nothing() -> None:
    points = Points.from_environment({})
    points.begin(1)
    for name in NAMES:
        points.reach(name)
        with points.during(name):
            pass
    assert points.armed is None
