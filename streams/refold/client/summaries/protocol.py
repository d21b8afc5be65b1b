"""What a summarizer is given, and what it gives."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

from refold.errors import RefoldError


class SummaryFailed(RefoldError):
    """There is no summary; nothing is changed by that. ``code`` is a short word for logs, ``again`` whether
    the same may succeed later, ``after_s`` when, where somebody said. The text holds nothing of the
    conversation."""

    exit_code = 75

    def __init__(self, code: str, reason: str, *, again: bool = True, after_s: float | None = None) -> None:
        super().__init__(f"no summary ({code}): {reason}")
        self.code = code
        self.again = again
        self.after_s = after_s


class Said(NamedTuple):
    """One message as words. ``author``: the name of who said it, where the session knows one."""

    role: str
    author: str | None
    text: str


@dataclass(frozen=True, slots=True)
class SummaryRequest:
    """Messages that one text is to stand for, oldest first.

    ``previous``: the summary in force, for the conversation before them; what is still needed of it has to be
    in the new text, which takes its place. ``bytes_max``: of the text in UTF-8; a longer one is cut.
    """

    tenant: str
    session: str
    previous: str | None = field(repr=False)
    messages: tuple[Said, ...] = field(repr=False)
    bytes_max: int


class Summarizer(Protocol):
    """Writes summaries; one serves any number of sessions at once.

    ``name`` is recorded with each summary as its model. Raises SummaryFailed, or anything else: the session
    stays as it is. An empty text counts as a failure.
    """

    @property
    def name(self) -> str: ...

    async def summarize(self, request: SummaryRequest) -> str: ...
