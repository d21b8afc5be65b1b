"""Parts of a session that the application's own reducers fold, as a reader sees them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from refold.core.reducers import Unfit
from refold.errors import UsageError
from refold.reducers import declared


@dataclass(frozen=True, slots=True)
class ReducedPart:
    """``value``: the state, in the reducer's own shape where this process declares it, else plain JSON.

    ``seq``: of the last event of its types. ``quarantined``: nothing is folded into it since, for the reason
    in ``error``; ``value`` is what it was before, ``None`` where it has none (``refold reducer release``).
    """

    name: str
    version: int
    seq: int
    quarantined: bool
    error: str | None
    value: Any = field(repr=False)


def plain_part(row: Mapping[str, Any]) -> ReducedPart:
    """A snapshot's row, its state parsed."""
    return ReducedPart(
        row["name"],
        row["version"],
        row["seq"],
        row["status"] != "ok",
        row["error"],
        json.loads(row["state"]),
    )


def shaped_part(row: Mapping[str, Any]) -> ReducedPart:
    """A snapshot's row with its state as the reducer of this process sees it, upcast where it is older.

    Raises UsageError where this process declares the reducer and there is no way to its version.
    """
    made = plain_part(row)
    known = declared().get(made.name)
    if known is None or made.value is None:
        return made
    try:
        value = known.value(made.version, row["state"])
    except Unfit as unfit:
        raise UsageError(
            f"part {made.name} is of version {made.version}, this process declares version"
            f" {known.pure.version} ({unfit.error}): use the code the workers have, or read"
            " SnapshotView.reduced for the JSON"
        ) from None
    return ReducedPart(made.name, known.pure.version, made.seq, made.quarantined, made.error, value)
