"""Every limit of summaries, named with its unit."""

from __future__ import annotations

from typing import Final

from refold.core.limits import SUMMARY_BYTES_MAX, WINDOW_BYTES_MAX, WINDOW_MESSAGES_MAX

#: Sessions at once in one process: each waits for one answer of a model most of the time.
CONCURRENCY_DEFAULT: Final = 4
CONCURRENCY_MAX: Final = 256

#: A text is asked to be this short; the fold takes up to SUMMARY_BYTES_MAX.
TEXT_BYTES_DEFAULT: Final = 4 * 1024
TEXT_BYTES_MAX: Final = SUMMARY_BYTES_MAX

#: Of a window above its limit so much stays raw: half, so that the next summary is half a window away.
KEEP_SHARE: Final = 0.5

#: Read back from the journal where messages left the window without a summary: a window's worth twice over.
READ_BACK_MESSAGES_MAX: Final = 2 * WINDOW_MESSAGES_MAX
READ_BACK_BYTES_MAX: Final = 2 * WINDOW_BYTES_MAX

#: Of one call's arguments or one result, in the words a summarizer is given.
TOOL_TEXT_CHARS_MAX: Final = 2_000

#: One try, the summarizer's own retries included.
SUMMARIZE_S_MAX: Final = 180.0
#: The read before it and the ruling after it.
STATE_S: Final = 10.0
RULING_S: Final = 30.0

#: A session whose summary failed is tried again after 5, 10, 20 and 40 s. Then it is left alone until the
#: fold says something new of it: each sixteen messages (Y1).
TRIES_MAX: Final = 5
PAUSE_S: Final = 5.0
#: When a topic or a worker cannot be reached.
UNAVAILABLE_PAUSE_S: Final = 1.0

#: Sessions remembered at once, about 500 bytes each. What does not fit is heard of again when it grows.
ITEMS_MAX: Final = 100_000
#: The longest waiting ones among which one is chosen at random, so that processes do not all take the same.
CHOICE_MAX: Final = 32

#: SIGTERM waits this long for summaries under way.
DRAIN_S_DEFAULT: Final = 30.0

#: Of an OpenAI-compatible endpoint: tries of one request, and pauses between them (1, 2 s; what Retry-After
#: says, up to the longest).
HTTP_TRIES_MAX: Final = 3
HTTP_PAUSE_S: Final = 1.0
HTTP_PAUSE_S_MAX: Final = 20.0
HTTP_TIMEOUT_MS_DEFAULT: Final = 60_000
#: A longer answer is none.
HTTP_ANSWER_BYTES_MAX: Final = 1024 * 1024
