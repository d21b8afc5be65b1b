"""The parts of ``refold verify storm`` that need no Kafka: curves, chart, plan, arms, generations, ratios."""

from __future__ import annotations

import xml.etree.ElementTree as ET

import pytest

from refold.errors import UsageError
from refold.ops.storm.arms import ARMS, POLITE, STORM
from refold.ops.storm.chart import Line, Panel, draw, nice
from refold.ops.storm.curves import BIN_S, Live, ReadRate
from refold.ops.storm.grouplog import generation_of, java_hash
from refold.ops.storm.plan import QUICK, SABOTAGES, StormPlan, plan_for
from refold.ops.storm.ratios import ratios
from refold.ops.storm.report import chart
from refold.ops.storm.sampling import counter
from refold.settings_sections import WorkerSettings

SVG = "{http://www.w3.org/2000/svg}"


# -- curves ------------------------------------------------------------------------------------------


def test_a_read_is_spread_over_the_time_it_took() -> None:
    rate = ReadRate()
    rate.add(0.05, 0.25, 400)
    rate.add(0.31, 0.32, 50)
    assert rate.bins == pytest.approx([100, 200, 100, 50])
    assert rate.total == pytest.approx(450)


def test_peak_is_the_busiest_second_and_mean_from_first_to_last_byte() -> None:
    rate = ReadRate()
    for number in range(50):
        rate.add(number * BIN_S, number * BIN_S + 0.01, 1_000 if 20 <= number < 25 else 100)
    assert rate.peak == pytest.approx(5 * 1_000 + 5 * 100)
    assert rate.mean == pytest.approx((5 * 1_000 + 45 * 100) / 5)
    assert rate.seconds_above(9_000) == 0.5
    assert ReadRate().peak == ReadRate().mean == 0
    short = ReadRate()
    short.add(3.0, 3.05, 700)
    assert short.mean == short.peak == 700, "a mean is over a second at least, as the peak"


def test_points_keep_what_was_read() -> None:
    rate = ReadRate()
    for number in range(1_000):
        rate.add(number * BIN_S, number * BIN_S + 0.05, number)
    points = rate.points(90)
    assert len(points) <= 90
    assert points[0][0] == 0
    step = points[1][0]
    full = points[: 1_000 // round(step / BIN_S)]
    assert sum(y for _, y in full) * step == pytest.approx(
        sum(range(len(full) * round(step / BIN_S))), rel=1e-6
    )


def test_when_which_share_is_live() -> None:
    live = Live([1.0, 2.0, 3.0, 4.0], 4)
    assert [live.at(share) for share in (0.0, 0.25, 0.26, 0.5, 0.99, 1.0)] == [1.0, 1.0, 2.0, 2.0, 4.0, 4.0]
    assert Live([1.0], 2).at(1.0) is None, "who never came is not left out"
    assert Live([], 0).at(0.99) is None
    hundred = Live([float(n) for n in range(1, 101)], 100)
    assert hundred.at(0.99) == 99.0
    assert hundred.as_json() == {"of": 100, "first_s": 1.0, "p50_s": 50.0, "p99_s": 99.0, "all_s": 100.0}
    assert hundred.points(10)[0] == (1.0, 0.01)
    assert hundred.points(10)[-1] == (100.0, 1.0)


# -- chart -------------------------------------------------------------------------------------------


def test_the_chart_is_well_formed_and_inside_its_frame() -> None:
    title = 'a < b & "c"'
    panels = [
        Panel("rate", [Line("storm", [(0, 0), (10, 950)]), Line("<polite>", [(0, 10), (40, 20)])]),
        Panel("live", [Line("storm", [(0, 0), (40, 1.0)])], top=1.0),
    ]
    document = draw(title, panels)
    root = ET.fromstring(document)
    texts = [text.text for text in root.iter(f"{SVG}text")]
    assert title in texts
    assert {"rate", "live", "storm", "<polite>", "1000", "50 s"} <= set(texts)
    lines = list(root.iter(f"{SVG}polyline"))
    assert len(lines) == 3
    _, _, width, height = map(float, root.get("viewBox", "").split())
    for line in lines:
        for point in line.get("points", "").split():
            x, y = map(float, point.split(","))
            assert 0 <= x <= width
            assert 0 <= y <= height
    # The same arm has the same colour in both panels.
    assert lines[0].get("stroke") == lines[2].get("stroke") != lines[1].get("stroke")
    assert draw(title, panels) == document


def test_a_chart_of_nothing_is_a_chart() -> None:
    assert ET.fromstring(chart("empty", [("storm", ReadRate(), Live([], 0))])).tag == f"{SVG}svg"


@pytest.mark.parametrize(
    ("value", "expected"),
    [(0, 1), (0.003, 0.005), (1, 1), (1.1, 2), (2.2, 2.5), (3, 5), (7, 10), (99, 100), (1_200, 2_000)],
)
def test_scales_end_at_round_numbers(value: float, expected: float) -> None:
    assert nice(value) == pytest.approx(expected)


# -- plan and arms -----------------------------------------------------------------------------------


def test_options_change_the_plan_and_their_absence_does_not() -> None:
    assert plan_for(quick=False, sabotage=None, workers=None, rate=None) == StormPlan()
    assert plan_for(quick=False, sabotage=None, workers=5).workers == 5
    assert plan_for(quick=True, sabotage=None, sessions=77).sessions == 77
    assert plan_for(quick=True, sabotage=None).partitions == QUICK.partitions
    for name in SABOTAGES:
        plan = plan_for(quick=False, sabotage=name)
        assert (plan.sabotage, plan.sessions, list(plan.arms)) == (name, QUICK.sessions, [POLITE])
        assert plan.workers == 1
        assert plan_for(quick=True, sabotage=name, workers=2).workers == 2


@pytest.mark.parametrize("wrong", [{"hot_partitions": 7}, {"workers": 7}])
def test_plans_that_cannot_be_are_refused(wrong: dict[str, int]) -> None:
    with pytest.raises(UsageError):
        plan_for(quick=False, sabotage=None, **wrong)


def test_arms_are_made_of_settings_that_exist() -> None:
    """Goal: a renamed setting cannot turn an arm into another one unnoticed."""
    for arm in ARMS:
        settings = arm.settings(1_000, "t/s", hot_first="hot_first" in WorkerSettings.model_fields)
        for name in settings:
            assert name.removeprefix("REFOLD_WORKER__").lower() in WorkerSettings.model_fields
    assert POLITE.settings(1_000, "t/s", hot_first=True)["REFOLD_WORKER__HOT_FIRST"] == "true"
    assert STORM.settings(1_000, "t/s", hot_first=True)["REFOLD_WORKER__HOT_FIRST"] == "false"
    assert STORM.settings(1_000, "t/s", hot_first=False)["REFOLD_WORKER__RESTORE_BYTES_PER_S_MAX"] == "0"
    fields = WorkerSettings.model_fields
    assert POLITE.start_jitter_ms == fields["start_jitter_ms_max"].default
    assert POLITE.restore_jitter_ms == fields["restore_jitter_ms_max"].default
    assert POLITE.restores_max == fields["restores_max"].default


# -- what is read from outside -----------------------------------------------------------------------


def test_a_counter_is_found_by_its_whole_name() -> None:
    text = b"# HELP refold_x_total no 7\nrefold_x_total_more 3\nrefold_x_total 1.5e+06\nrefold_y_total 2\n"
    assert counter(text, "refold_x_total") == 1_500_000
    assert counter(text, "refold_z_total") == 0


def test_generations_are_read_from_the_groups_own_record() -> None:
    assert java_hash("abc") == 96_354
    key = (2).to_bytes(2) + (3).to_bytes(2) + b"grp"
    value = (3).to_bytes(2) + (8).to_bytes(2) + b"consumer" + (41).to_bytes(4) + b"the rest"
    assert generation_of(key, value, "grp") == 41
    assert generation_of(key, value, "other") is None
    assert generation_of(key, None, "grp") is None
    offset_key = (1).to_bytes(2) + (3).to_bytes(2) + b"grp"
    assert generation_of(offset_key, value, "grp") is None
    assert generation_of(None, value, "grp") is None


def test_ratios_compare_what_is_there() -> None:
    def arm(peak: float, p99: float | None, assigned: float) -> dict[str, object]:
        return {"read_peak_bytes_per_s": peak, "hot": {"p99_s": p99}, "assigned_s": assigned}

    arms = {"storm": arm(90, 4, 1), "capped": arm(20, 22, 2), "polite": arm(30, 9, 4)}
    assert ratios(arms) == {"hot_p99": 2.44, "hot_p99_assigned": 4.0, "read_peak": 3.0}
    arms["polite"] = arm(10, None, 4)
    assert ratios(arms) == {"hot_p99": None, "hot_p99_assigned": None, "read_peak": 4.5}
    del arms["capped"], arms["polite"]
    assert set(ratios(arms).values()) == {None}
