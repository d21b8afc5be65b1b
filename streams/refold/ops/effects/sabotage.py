"""Rules broken on purpose: a harness that cannot fail proves nothing.

Each is a branch in the code it breaks, in the agent processes, the operator or the gateway of a run.
"""

from __future__ import annotations

from typing import Final

from refold.errors import UsageError

#: Name on the command line -> what it breaks.
SABOTAGES: Final[dict[str, str]] = {
    "rerun-unknown": "a call of unknown outcome is run again instead of waiting for a review",
    "no-lease": "the body runs without waiting until started was accepted under the caller's lease",
    "lookup-not-authoritative": "the gateway says not_done without voiding the key: a woken runner runs",
    "result-before-effect": "the result is recorded before the effect has run",
    "unstable-key": "the gateway is given a fresh key each time instead of the call's own",
}


def check(name: str | None) -> None:
    """Raises :class:`UsageError` for a name that is not in the table."""
    if name is not None and name not in SABOTAGES:
        raise UsageError(f"unknown sabotage {name!r}; there are: {', '.join(SABOTAGES)}")
