"""The summary of a demo, as a person reads it."""

from __future__ import annotations

import pytest

from refold.cli.output import Output
from refold.demo.controlled import ControlResult
from refold.demo.judge import Verdict
from refold.demo.report import Report
from refold.ops.fleet import Death
from refold.ops.fleet.death import DeathKind


def _summary(capsys: pytest.CaptureFixture[str], *deaths: Death) -> str:
    control = ControlResult(events=10, lost=1, doubled=2, continue_ms=[1000.0])
    Report(Verdict(sessions=1), deaths, [], control, 1, 1.0, [], "local", "127.0.0.1:1", "refold", 2).show(
        Output(False)
    )
    return capsys.readouterr().out


def test_only_what_happened_is_summed_up(capsys: pytest.CaptureFixture[str]) -> None:
    """Goal: a short run without a take-over, or without any kill, has no figure with nothing in it."""
    restart = Death("w0", DeathKind.KILL, "in_commit", events=1, recovered_ms=6400.0)
    one = _summary(capsys, restart)
    assert "1 kill, 1 with folded, uncommitted events: 1 x in_commit" in one
    assert "refold went on after 6.4 s when the worker restarted (median)\n" in one
    both = _summary(capsys, restart, Death("w1", DeathKind.KILL, takeover=True, recovered_ms=8600.0))
    assert "2 kills, 1 with" in both
    assert "after 6.4 s when the worker restarted, 8.6 s when another took over (median)\n" in both
    assert "went on" not in _summary(capsys)


def test_the_table_says_what_it_counts(capsys: pytest.CaptureFixture[str]) -> None:
    """Goal: the control's figures stand beside the number of records they are of."""
    assert "lost are those of 10 records that its final counts lack" in _summary(capsys)
