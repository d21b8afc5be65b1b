"""Names for calls of sources that give them none.

Some formats tie a result to its call by position only (ShareGPT, the tau-bench fork, OpenAI's old
``function_call``). Refold's parts need a call id, so such calls are numbered in the order asked and results
answer the oldest open call. The number depends on the conversation alone, so two imports agree. The mappers
mark such ids by a hint and leave them out again on export.
"""

from __future__ import annotations

from collections import deque
from typing import Final

#: Open anonymous calls remembered per conversation; a source that leaves more unanswered pairs the newest
#: ones.
OPEN_CALLS_MAX: Final = 1024


class CallNames:
    """One conversation's anonymous calls. ``prefix`` keeps two conversations' (or messages') names apart."""

    def __init__(self, prefix: str = "refold_call") -> None:
        self._prefix = prefix
        self._asked = 0
        self._open: deque[str] = deque(maxlen=OPEN_CALLS_MAX)
        self._by_name: deque[str] = deque(maxlen=OPEN_CALLS_MAX)

    def ask(self, tool: str) -> str:
        """The name of a new anonymous call of ``tool``."""
        name = f"{self._prefix}_{self._asked}"
        self._asked += 1
        self._open.append(name)
        self._by_name.append(tool)
        return name

    def answer(self, tool: str | None = None) -> str:
        """The call an anonymous result answers: the oldest open one (of ``tool`` where that is said).

        Without any open call the result is an orphan; it gets a name no call has.
        """
        for at, candidate in enumerate(self._by_name):
            if tool is None or candidate == tool:
                del self._by_name[at]
                found = self._open[at]
                del self._open[at]
                return found
        if self._open:
            self._by_name.popleft()
            return self._open.popleft()
        self._asked += 1
        return f"{self._prefix}_orphan_{self._asked - 1}"

    def waiting(self) -> int:
        """Anonymous calls without an answer."""
        return len(self._open)

    def turn_ended(self) -> None:
        """A new user turn: calls still open stay unanswered for good."""
        self._open.clear()
        self._by_name.clear()
