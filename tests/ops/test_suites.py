"""The suite runner: nothing is left out, nothing over budget passes, nothing unreadable counts as passed."""

from __future__ import annotations

import importlib.util
import re
import sys
import threading
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def suites() -> ModuleType:
    spec = importlib.util.spec_from_file_location("run_suites", ROOT / "tests" / "run_suites.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["run_suites"] = module
    spec.loader.exec_module(module)
    return module


def test_every_test_file_belongs_to_exactly_one_suite(suites: ModuleType) -> None:
    """Goal: a new test file is run. Method: compare the assignment with what is on disk."""
    on_disk = sorted(suites.test_files())
    claimed = [name for files in suites.assign(on_disk).values() for name in files]
    assert sorted(claimed) == on_disk
    assert len(on_disk) == len(set(claimed))


def test_every_suite_has_files(suites: ModuleType) -> None:
    """Goal: renaming a directory cannot switch a suite off."""
    files = suites.assign(suites.test_files())
    assert [s.name for s in suites.SUITES if s.name != "lint" and not files[s.name]] == []


def test_a_file_no_pattern_claims_goes_to_unit(suites: ModuleType) -> None:
    files = suites.assign(["new_part/test_x.py", "wire/test_y.py"])
    assert files["unit"] == ["new_part/test_x.py"]
    assert files["wire"] == ["wire/test_y.py"]


def test_the_suites_fit_the_promised_total(suites: ModuleType) -> None:
    """Goal: the run ends in time on a host half as slow again as the one the suites were measured on. Method:
    hand out what they take alone as ``run_lanes`` does."""

    def takes(suite: Any) -> float:
        budget_s = suite.budget_s / (suites.LONG_FACTOR if suites.LONG else 1)
        return float(suites.SLOWER * budget_s / suites.BUDGET_FACTOR)

    first = sum(takes(s) for s in suites.SUITES if not s.aside)
    free_at = [first] + [0.0] * (suites.LANES - 1)
    for suite in (s for s in suites.SUITES if s.aside):
        free_at.sort()
        free_at[0] += takes(suite)
    assert max(free_at) <= suites.TOTAL_BUDGET_S <= 25 * 60


def test_no_suite_is_stopped_later_than_the_run(suites: ModuleType) -> None:
    """Goal: a suite that hangs is told by name, and not by the end of everything."""
    ends_s = suites.TOTAL_BUDGET_S * (suites.LONG_FACTOR if suites.LONG else 1)
    assert [s.name for s in suites.SUITES if s.budget_s * suites.HARD_STOP_FACTOR > ends_s] == []


def test_the_page_for_contributors_promises_the_same_total(suites: ModuleType) -> None:
    """Goal: what a newcomer is told to expect is what the runner allows."""
    page = (ROOT / "CONTRIBUTING.md").read_text()
    assert re.findall(r"(\d+) minutes", page) == [str(suites.TOTAL_BUDGET_S // 60)]


def test_all_lanes_run_and_are_told_in_order(
    suites: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """Goal: what runs aside is neither lost nor mixed into another lane's output."""
    code = "import sys; print('said by', sys.argv[1])"
    monkeypatch.setattr(suites, "REPORTS", tmp_path)
    monkeypatch.setattr(suites, "command", lambda suite, *_, **__: [sys.executable, "-c", code, suite.name])
    chosen = [suites.Suite(name, 60, (), name, aside=name in "bdef") for name in "abcdef"]
    for kind in (chosen, [s for s in chosen if s.aside], [s for s in chosen if not s.aside]):
        outcomes = suites.run_lanes(kind, {name: ["x"] for name in "abcdef"})
        assert [(o.name, o.ok) for o in outcomes] == [(s.name, True) for s in kind]
        said = capfd.readouterr().out
        assert said.count("said by") == len(kind)
        assert all(said.count(f"said by {suite.name}\n") == 1 for suite in kind)
        for suite in kind:
            if suite.aside:
                assert f"=== {suite.name} (budget 60 s): {suite.name}\nsaid by {suite.name}\n" in said
    empty = suites.run_lanes(chosen[1:2], {"b": []})
    assert (empty[0].failed, empty[0].failures) == (1, ["b: no test files"])


def test_what_is_aside_fills_every_lane_and_the_first_keeps_to_its_turn(
    suites: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Goal: never two of the first lane's suites at once, and nobody idle while a suite waits. Method: the
    first lane's suites end when every other lane has one that waits for the first lane to join them."""
    chosen = [suites.Suite(name, 60, (), name, aside=name in "cde") for name in "abcde"]
    all_lanes, running, together = threading.Barrier(suites.LANES), [], []

    def run_suite(suite: Any, _files: object, *, aside: bool = False) -> Any:
        running.append(suite.name)
        together.append(sum(name in "ab" for name in running))
        if suite.aside:
            all_lanes.wait(60)
        running.remove(suite.name)
        return suites.Outcome(suite.name, 60, passed=1)

    monkeypatch.setattr(suites, "run_suite", run_suite)
    outcomes = suites.run_lanes(chosen, {name: ["x"] for name in "abcde"})
    assert [o.name for o in outcomes] == list("abcde")
    assert max(together) == 1


def run(
    suites: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, code: str, budget_s: int
) -> object:
    suite = suites.Suite("sample", budget_s, (), "a sample")
    monkeypatch.setattr(suites, "REPORTS", tmp_path)
    monkeypatch.setattr(suites, "command", lambda *_, **__: [sys.executable, "-c", code])
    return suites.run_suite(suite, ["x"])


def test_a_suite_over_its_budget_fails(
    suites: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Goal: exceeding the budget fails although every test passed. Method: budget 0 s, a run that passes."""
    outcome = run(suites, monkeypatch, tmp_path, "pass", 0)
    assert outcome.over_budget  # type: ignore[attr-defined]
    assert not outcome.ok  # type: ignore[attr-defined]
    assert suites.summary([outcome]).startswith("0 passed, 1 failed")


def test_an_exit_code_without_a_report_is_a_failure(
    suites: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Goal: pytest dying (collection error, no tests, signal) is never read as a pass."""
    outcome = run(suites, monkeypatch, tmp_path, "raise SystemExit(5)", 60)
    assert (outcome.failed, outcome.ok) == (1, False)  # type: ignore[attr-defined]


def test_counts_come_from_the_junit_file(suites: ModuleType, tmp_path: Path) -> None:
    report = tmp_path / "r.xml"
    report.write_text(
        """<testsuites><testsuite>
        <testcase classname='a' name='ok'/>
        <testcase classname='a' name='bad'><failure/></testcase>
        <testcase classname='a' name='err'><error/></testcase>
        <testcase classname='a' name='skip'><skipped message='why'/></testcase>
        </testsuite></testsuites>"""
    )
    outcome = suites.Outcome("sample", 10)
    suites.read_junit(report, outcome)
    assert (outcome.passed, outcome.failed, outcome.skipped) == (1, 2, 1)
    assert outcome.failures == ["a::bad", "a::err"]
    assert suites.summary([outcome]) == "1 passed, 2 failed, 1 skipped"


def test_the_table_names_what_failed(suites: ModuleType) -> None:
    late = suites.Outcome("late", 10, seconds=11.0, passed=3, over_budget=True)
    bad = suites.Outcome("bad", 10, seconds=1.0, failed=1)
    text = suites.table([late, bad], 12.0)
    assert "OVER BUDGET" in text.splitlines()[1]
    assert "FAILED" in text.splitlines()[2]


RACE = """
from pathlib import Path

def test_lost_once():
    seen = Path(__file__).with_suffix(".seen")
    lost = not seen.exists()
    seen.touch()
    assert not lost

def test_steady():
    pass
"""


@pytest.mark.parametrize(
    ("source", "failed", "unsteady"),
    [(RACE, 0, 1), ("def test_wrong():\n    assert False\n\ndef test_steady():\n    pass\n", 1, 0)],
)
def test_what_failed_is_tried_again_alone(
    suites: ModuleType,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    source: str,
    failed: int,
    unsteady: int,
) -> None:
    """Goal: a lost race is told and does not fail the run; what is wrong stays wrong."""
    (tmp_path / "tests").mkdir()
    (tmp_path / "tests" / "test_sample.py").write_text(source)
    suite = suites.Suite("sample", 60, (), "a sample")
    monkeypatch.setattr(suites, "REPORTS", tmp_path / "reports")
    monkeypatch.setattr(suites, "ROOT", tmp_path)
    monkeypatch.setattr(suites, "SUITES", (suite,))
    files = {"sample": ["test_sample.py"]}
    outcomes = suites.run_lanes([suite], files)
    assert (outcomes[0].passed, outcomes[0].failed) == (1, 1)
    suites.try_again(outcomes, files)
    assert (outcomes[0].passed, outcomes[0].failed) == (2 - failed, failed)
    assert len(outcomes[0].unsteady) == unsteady
    assert outcomes[0].ok is (failed == 0)


def test_many_failures_are_no_race(
    suites: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Goal: a broken build is not tried again until it passes."""
    names = [f"a::{n}" for n in range(suites.SECOND_TRIES_MAX + 1)]
    outcome = suites.Outcome("engine", 60, failed=len(names), failures=names)
    monkeypatch.setattr(suites, "_watched", lambda *_, **__: pytest.fail("it was tried again"))
    suites.try_again([outcome], {"engine": ["x"]})
    assert outcome.failed == len(names)
