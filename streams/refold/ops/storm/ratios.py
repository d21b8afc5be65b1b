"""Arm against arm: the figures that a restart is judged by."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def ratios(arms: Mapping[str, Any]) -> dict[str, float | None]:
    """``None``: an arm is not there.

    - ``hot_p99``: with the same cap, how many times sooner 99 % of the hot sessions are live when the workers
      are polite, since the processes' start; ``hot_p99_assigned``: since the first assignment.
    - ``read_peak``: the peak of the arm without a cap, over the higher one of those with it.
    """
    capped, polite, storm = (arms.get(name) for name in ("capped", "polite", "storm"))
    found: dict[str, float | None] = dict.fromkeys(("hot_p99", "hot_p99_assigned", "read_peak"))
    if capped and polite and capped["hot"]["p99_s"] and polite["hot"]["p99_s"]:
        late, soon = capped["hot"]["p99_s"], polite["hot"]["p99_s"]
        found["hot_p99"] = round(late / soon, 2)
        late, soon = late - capped.get("assigned_s", 0.0), soon - polite.get("assigned_s", 0.0)
        found["hot_p99_assigned"] = round(late / soon, 2) if soon > 0 else None
    limited = max((one["read_peak_bytes_per_s"] for one in (capped, polite) if one), default=0)
    if storm and limited:
        found["read_peak"] = round(storm["read_peak_bytes_per_s"] / limited, 2)
    return found
