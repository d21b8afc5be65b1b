"""The arms of the comparison: one restart, three ways."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

#: More restores at once than a worker has partitions: nobody waits for a turn, so there is no order either.
ALL_AT_ONCE: Final = 64
#: What a worker does by default (`worker.start_jitter_ms_max`, `.restore_jitter_ms_max`, `.restores_max`).
START_JITTER_MS_MAX: Final = 500
RESTORE_JITTER_MS_MAX: Final = 2_000
RESTORES_MAX: Final = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Arm:
    """``polite``: jitter, at most R restores at once, core partitions first and then by unread records, and
    hot first where there is such a thing. ``capped``: the limit in bytes per second and worker."""

    name: str
    polite: bool
    capped: bool

    @property
    def start_jitter_ms(self) -> int:
        return START_JITTER_MS_MAX if self.polite else 0

    @property
    def restore_jitter_ms(self) -> int:
        return RESTORE_JITTER_MS_MAX if self.polite else 0

    @property
    def restores_max(self) -> int:
        return RESTORES_MAX if self.polite else ALL_AT_ONCE

    def settings(self, cap_bytes_per_s: int, first: str | None, *, hot_first: bool) -> Mapping[str, str]:
        """Environment of the workers. ``hot_first``: this build has the setting."""
        found = {
            "REFOLD_WORKER__START_JITTER_MS_MAX": str(self.start_jitter_ms),
            "REFOLD_WORKER__RESTORE_JITTER_MS_MAX": str(self.restore_jitter_ms),
            "REFOLD_WORKER__RESTORES_MAX": str(self.restores_max),
            "REFOLD_WORKER__RESTORE_BYTES_PER_S_MAX": str(cap_bytes_per_s if self.capped else 0),
        }
        if self.polite and first is not None:
            found["REFOLD_WORKER__RESTORE_FIRST"] = first
        if hot_first:
            found["REFOLD_WORKER__HOT_FIRST"] = "true" if self.polite else "false"
        return found


STORM: Final = Arm(name="storm", polite=False, capped=False)
CAPPED: Final = Arm(name="capped", polite=False, capped=True)
POLITE: Final = Arm(name="polite", polite=True, capped=True)

ARMS: Final = (STORM, CAPPED, POLITE)
