"""A generation that records its own usage (docs/concepts/usage.md): for whom, and how it is counted once.

Who the meter is for stands in the journal with the generation's start, so whichever process ends it knows.
The event's id is derived from the generation's: however many processes record it, it counts once. It is
recorded before the end, which another process would write again should this one die in between.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final, Protocol

import orjson

from refold.client.usage.names import check_names
from refold.core.progress import TokenUsage

#: Field of GenerationStarted's ``extra``.
FIELD: Final = "meter"


class Metered(Protocol):
    """A :class:`Meter`, or a handle of usage (``rf.usage(subject, model)``)."""

    @property
    def subject(self) -> str: ...

    @property
    def model(self) -> str: ...


@dataclass(frozen=True, slots=True)
class Meter:
    """Whose usage of which model a generation is."""

    subject: str
    model: str

    @classmethod
    def of(cls, metered: Metered | None) -> Meter | None:
        """Raises UsageError for names that the fold would refuse."""
        if metered is None:
            return None
        check_names(metered.subject, metered.model)
        return cls(metered.subject, metered.model)

    def to_extra(self) -> bytes:
        """Opaque JSON, kept byte for byte."""
        return orjson.dumps({FIELD: {"subject": self.subject, "model": self.model}})

    @classmethod
    def from_extra(cls, extra: bytes | None) -> Meter | None:
        """``None`` where none is named, or a later version says it otherwise."""
        try:
            found = orjson.loads(extra or b"null")
            return cls(str(found[FIELD]["subject"]), str(found[FIELD]["model"]))
        except (ValueError, KeyError, TypeError):
            return None

    def payload(self, usage: TokenUsage) -> dict[str, Any]:
        """Of UsageRecorded: a generation is one request, with the tokens of all its attempts."""
        return {"model": self.model, "requests": 1, **usage._asdict()}


def usage_event_id(generation_id: str) -> str:
    return f"usage/{generation_id}"
