"""Topic names of one application (architecture.md, section 3)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self


@dataclass(frozen=True, slots=True)
class TopicNames:
    inbox: str
    journal: str
    state: str
    history: str
    rejected: str
    group: str

    @classmethod
    def of(cls, prefix: str) -> Self:
        return cls(
            inbox=f"{prefix}.inbox",
            journal=f"{prefix}.journal",
            state=f"{prefix}.state",
            history=f"{prefix}.history",
            rejected=f"{prefix}.rejected",
            group=prefix,
        )
