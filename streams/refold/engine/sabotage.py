"""Rules broken on purpose: a harness that cannot fail proves nothing.

``refold verify chaos --sabotage NAME`` and the crash-matrix tests switch one of these on and must then find a
difference. Every switch is a branch in the code it breaks, never a second implementation.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Final

from refold.errors import ConfigError

#: Name on the command line -> what it breaks.
SABOTAGES: Final[dict[str, str]] = {
    "skip-dedup": "rule U: a duplicate is accepted as if it were new",
    "disk-before-commit": "the RocksDB batch is written before the transaction commits, and a disk ahead"
    " is trusted",
    "offsets-before-produce": "the offsets are committed in a transaction of their own before the outputs",
    "fold-misrouted": "rule P: a record on the wrong partition is folded there instead of forwarded",
    "restore-to-eof": "rule T: restore to end-of-partition, then look up the offset, no fencing, no check",
    "timer-without-offsets": "rule F: outputs, proposals among them, are written in a transaction that sends"
    " no offsets",
    "batches-without-offsets": "rule F: generation records are written in a transaction that sends no offset"
    " of batches",
    "revoke-without-barrier": "rule R: a revoked partition is neither waited for nor dropped",
}


@dataclass(frozen=True, slots=True)
class Sabotage:
    """At most one switch is on; all off is the product."""

    skip_dedup: bool = False
    disk_before_commit: bool = False
    offsets_before_produce: bool = False
    fold_misrouted: bool = False
    restore_to_eof: bool = False
    timer_without_offsets: bool = False
    batches_without_offsets: bool = False
    revoke_without_barrier: bool = False

    @classmethod
    def parse(cls, name: str | None, *, environment: str) -> Sabotage:
        if name is None or name == "":
            return cls()
        if name not in SABOTAGES:
            raise ConfigError(f"unknown sabotage {name!r}; there are: {', '.join(SABOTAGES)}")
        if environment == "prod":
            raise ConfigError(
                f"sabotage {name!r} breaks a guarantee on purpose and is refused with environment=prod; unset"
                " REFOLD_WORKER__SABOTAGE"
            )
        return cls(**{name.replace("-", "_"): True})

    @property
    def name(self) -> str | None:
        for field in fields(self):
            if getattr(self, field.name):
                return field.name.replace("_", "-")
        return None
