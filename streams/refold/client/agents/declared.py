"""What an agent may be declared with."""

from __future__ import annotations

from collections.abc import Sequence

from refold.client.agents.limits import (
    LEASE_S_MAX,
    LEASE_S_MIN,
    STEP_HEARTBEAT_S_MAX,
    STEP_HEARTBEAT_S_MIN,
)
from refold.core.limits import RUN_ACCEPTS_MAX, RUN_NAME_BYTES_MAX
from refold.errors import UsageError


def check_names(name: str, version: str, accepts: Sequence[str]) -> None:
    """Raises UsageError."""
    if isinstance(accepts, str) or len(accepts) > RUN_ACCEPTS_MAX:
        raise UsageError(f"accepts={accepts!r}: a list of at most {RUN_ACCEPTS_MAX} versions")
    for what, text in (("name", name), ("version", version), *(("accepts", other) for other in accepts)):
        if not 1 <= len(text.encode("utf-8", "replace")) <= RUN_NAME_BYTES_MAX:
            raise UsageError(f"an agent's {what} has 1 to {RUN_NAME_BYTES_MAX} bytes, not {text[:40]!r}")


def check_lease(lease_s: float) -> float:
    if not LEASE_S_MIN <= lease_s <= LEASE_S_MAX:
        raise UsageError(f"lease={lease_s!r}: {LEASE_S_MIN:g} to {LEASE_S_MAX:g} seconds")
    return float(lease_s)


def check_heartbeat(heartbeat_s: float) -> float:
    if not STEP_HEARTBEAT_S_MIN <= heartbeat_s <= STEP_HEARTBEAT_S_MAX:
        raise UsageError(
            f"heartbeat={heartbeat_s!r}: {STEP_HEARTBEAT_S_MIN:g} to {STEP_HEARTBEAT_S_MAX:g} seconds"
        )
    return float(heartbeat_s)
