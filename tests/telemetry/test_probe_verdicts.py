"""The three probes mean three things."""

from __future__ import annotations

from dataclasses import replace

from refold.telemetry.health import LOOP_SILENCE_SECONDS_MAX, STALENESS_SECONDS_MAX, Vitals, judge

WELL = Vitals(joined=True, stopping=False, loop_silence_s=0.1, staleness_s=0.0, partitions={"live": 4})


def test_all_well() -> None:
    verdict = judge(WELL)
    assert (verdict.startup, verdict.ready, verdict.live, verdict.reasons) == (True, True, True, ())


def test_not_joined_is_not_started() -> None:
    verdict = judge(replace(WELL, joined=False, partitions={}))
    assert (verdict.startup, verdict.ready, verdict.live) == (False, False, True)


def test_restoring_is_started_but_not_ready() -> None:
    verdict = judge(replace(WELL, partitions={"live": 3, "restoring": 1, "waiting": 0}))
    assert (verdict.startup, verdict.ready, verdict.live) == (True, False, True)
    assert verdict.reasons == ("1 partitions are restoring",)


def test_stale_is_not_ready_and_still_alive() -> None:
    """Kafka down for an hour: a restart would not bring it back, so liveness holds."""
    verdict = judge(replace(WELL, staleness_s=3600.0))
    assert (verdict.ready, verdict.live) == (False, True)
    assert judge(replace(WELL, staleness_s=STALENESS_SECONDS_MAX)).ready


def test_a_loop_that_stands_still_is_dead() -> None:
    assert judge(replace(WELL, loop_silence_s=LOOP_SILENCE_SECONDS_MAX)).live
    verdict = judge(replace(WELL, loop_silence_s=LOOP_SILENCE_SECONDS_MAX + 1))
    assert (verdict.ready, verdict.live) == (False, False)


def test_stopping_is_not_ready() -> None:
    assert not judge(replace(WELL, stopping=True)).ready


def test_a_worker_without_partitions_is_ready() -> None:
    """More workers than partitions: the spare one is healthy."""
    assert judge(replace(WELL, partitions={})).ready
