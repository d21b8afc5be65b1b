"""The effects harness' plan, boundaries and ledger: pure, no broker."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from refold.errors import ConfigError, StorageError, UsageError
from refold.ops.effects import ledger
from refold.ops.effects.boundaries import (
    BOUNDARIES,
    CALL,
    RECOVERY,
    STEP_OF_EVENT,
    Boundaries,
    arm,
    disarm,
    hits,
    parse,
)
from refold.ops.effects.plan import EffectsPlan, cannot_say, kind_of, plan_for, weather
from refold.ops.effects.protocol import load_agent
from refold.ops.effects.sabotage import SABOTAGES, check

FULL = {"conversations": 200, "seconds": 170.0, "agents": 4, "kills_per_boundary": None, "agent": None}


def plan(seed: int = 1, **changes: object) -> EffectsPlan:
    return plan_for(seed=seed, **{**FULL, "sabotage": None, **changes})  # type: ignore[arg-type]


def test_a_full_plan_has_fifty_kills_evenly_over_the_boundaries() -> None:
    made = plan()
    deaths = made.deaths()
    killed = Counter(death.boundary for death in deaths if death.action == "kill")
    assert set(killed) == set(BOUNDARIES)
    assert len({killed[name] for name in CALL}) == 1
    assert len({killed[name] for name in RECOVERY}) == 1
    assert sum(killed[name] for name in CALL) + made.worker_kills >= 50
    assert len(deaths) + made.worker_kills == made.kills


def test_the_effect_is_hit_with_every_kind_of_tool_and_frozen_with_each() -> None:
    """Goal: the gates (done, not done, unknown, a woken runner) cannot depend on luck."""
    deaths = plan().deaths()
    for boundary in ("before_effect", "after_effect"):
        kinds = {d.kind for d in deaths if d.boundary == boundary and d.action == "kill"}
        assert kinds == {"lookup", "plain", "idempotent"}
    assert {d.kind for d in deaths if d.action == "stop"} == {"lookup", "plain", "idempotent"}


def test_a_short_plan_keeps_what_the_gates_need() -> None:
    deaths = plan(conversations=24).deaths()
    assert {d.boundary for d in deaths} == set(CALL)
    assert {"lookup", "plain"} <= {d.kind for d in deaths if d.boundary == "after_effect"}
    assert [d for d in deaths if d.action == "stop"]


@pytest.mark.parametrize("sabotage", SABOTAGES)
def test_a_sabotage_is_given_only_deaths_that_show_it(sabotage: str) -> None:
    made = plan(sabotage=sabotage)
    assert len(set(made.deaths())) == 1
    assert made.conversations < 200
    with pytest.raises(UsageError, match="rerun-unknown"):
        plan(sabotage="nothing")


def test_a_seed_decides_and_another_seed_decides_otherwise() -> None:
    assert plan(1).deaths() == plan(1).deaths()
    assert plan(1).deaths() != plan(2).deaths()
    assert list(plan(1).worker_deaths()) == list(plan(1).worker_deaths())
    sky = [weather(1, "s", f"op/{n}", 0) for n in range(400)]
    assert sky == [weather(1, "s", f"op/{n}", 0) for n in range(400)]
    assert any(w.refuse for w in sky)
    assert any(w.drop for w in sky)
    assert not any(w.refuse and w.drop for w in sky)
    assert {cannot_say(1, "s", f"op/{n}") for n in range(400)} == {True, False}
    assert {kind_of(1, f"s{n}", "cd") for n in range(60)} == {"lookup", "idempotent", "plain"}


def test_the_table_of_boundaries_covers_every_step() -> None:
    steps = {name.split("_", 1)[1] for name in BOUNDARIES}
    assert steps == {*STEP_OF_EVENT.values(), "effect", "lookup"}


@pytest.mark.parametrize(
    "spec", ["", "nowhere:kill", "before_effect", "before_effect:hug", "before_effect:kill:a:b"]
)
def test_a_wrong_spec_is_refused_by_name(spec: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="before_intent"):
        arm(tmp_path / "p", spec)
    assert not (tmp_path / "p").exists()


def test_parse_reads_what_a_death_writes() -> None:
    for death in plan().deaths():
        assert parse(death.spec) == (death.boundary, death.action, death.kind)


ACT = """
import sys
from pathlib import Path
from refold.ops.effects.boundaries import Boundaries
boundaries = Boundaries(Path(sys.argv[1]))
boundaries.reach("before_effect", "s", "op", "plain")
boundaries.reach("after_effect", "s", "op", "lookup")
print("past it", flush=True)
"""


def test_an_armed_boundary_kills_at_its_kind_and_says_so_first(tmp_path: Path) -> None:
    file = tmp_path / "agent.point"
    arm(file, "after_effect:kill:lookup")
    died = subprocess.run([sys.executable, "-c", ACT, str(file)], capture_output=True, text=True, check=False)
    assert (died.returncode, died.stdout) == (-signal.SIGKILL, "")
    assert hits(file) == [
        {"point": "after_effect", "action": "kill", "session": "s", "operation": "op", "kind": "lookup"}
    ]
    assert not disarm(file), "the process took the spec"


def test_a_boundary_of_another_kind_is_passed_and_can_be_disarmed(tmp_path: Path) -> None:
    file = tmp_path / "agent.point"
    arm(file, "before_effect:kill:idempotent")
    Boundaries(file).reach("before_effect", "s", "op", "plain")
    assert hits(file) == []
    assert disarm(file)


def test_the_ledger_is_readable_line_by_line(tmp_path: Path) -> None:
    book = ledger.Ledger(tmp_path / "l")
    book.write("executed", "s", "op/1", "cd", {"folder": "ä"}, "ok")
    book.write("lookup", "s", "op/1", "cd", {}, "done")
    rows = list(ledger.read(tmp_path / "l"))
    assert [(row.n, row.what) for row in rows] == [(1, "executed"), (2, "lookup")]
    assert book.executed["s"] == rows[:1]
    book.close()


def test_a_ledger_has_an_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ledger, "LINES_MAX", 1)
    book = ledger.Ledger(tmp_path / "l")
    book.write("executed", "s", "op/1", "cd", {}, "ok")
    with pytest.raises(StorageError, match="without end"):
        book.write("executed", "s", "op/2", "cd", {}, "ok")
    book.close()


def test_agents_are_named_as_module_and_object() -> None:
    assert load_agent("json:dumps") is json.dumps
    with pytest.raises(UsageError, match="module:object"):
        load_agent("json")
    with pytest.raises(ConfigError, match="cannot be imported"):
        load_agent("no_such_module_here:play")
    with pytest.raises(ConfigError, match="no callable"):
        load_agent("json:nothing")


def test_sabotages_are_a_closed_list() -> None:
    check(None)
    for name in SABOTAGES:
        check(name)
    with pytest.raises(UsageError, match="rerun-unknown"):
        check("nothing")
