"""A call of librdkafka's transaction API that does not come back although it was given a time limit.

Seen when the only broker was down for 20 s while a worker was idle: the next commit's
``send_offsets_to_transaction(…, 5 s)`` waited for ever, and with it the worker, which looked ready. The cause
is known and avoided (``clients.transactional``); what else may hang there is not. Nothing can interrupt the
call, so the process ends: what was not committed is read again.

Pure. It counts looks and not seconds: a process that was suspended in the middle of a call is not stuck.
"""

from __future__ import annotations

from typing import Final

#: Looks, about a second apart, at one call: three times what a call is given (``commit.CALL_TIMEOUT_S``).
LOOKS_MAX: Final = 15


class Stuck:
    """``look`` is to be called about once a second, from one thread."""

    def __init__(self) -> None:
        self._since = 0.0
        self._looks = 0

    def look(self, since: float) -> bool:
        """``since``: when the call under way began, any clock; 0: there is none. True when it has been seen
        too often."""
        if since == 0.0 or since != self._since:
            self._since, self._looks = since, 0
        self._looks += 1
        return since != 0.0 and self._looks > LOOKS_MAX
