"""Going on with a text that was broken off: what a new stream repeats of it is dropped.

Two cases. A model that was asked to continue may begin with the last words again (:func:`trim_overlap`). A
looked-up stream repeats everything from the start (:func:`skip_prefix`). Both take bytes in any cuts,
inside a character too, and hold back only what is not decided yet.
"""

from __future__ import annotations

from typing import Final

from refold.errors import InvalidRecord

#: How much of the prefix's end is looked at, and so the most that is held back. A model repeats a sentence,
#: at worst a paragraph: 4 KiB are some 700 words. Held bytes are ones the reader has already, so none
#: waits.
OVERLAP_BYTES_MAX: Final = 4096
#: A shorter overlap is taken for chance: one letter agrees in one of 15 cases, and swallowing it would
#: damage a word, where a repeated scrap is only ugly. At 8 bytes chance is out but for runs of one
#: character (indents, rules), which are never trimmed unless they go on to something else.
OVERLAP_BYTES_MIN: Final = 8


class OverlapTrimmer:
    """Made by :func:`trim_overlap`."""

    __slots__ = ("_held", "_least", "_prefix", "decided", "dropped")

    def __init__(self, prefix: bytes, least: int) -> None:
        self._prefix = prefix
        self._least = least
        self._held = b""
        #: Whether everything from here on is passed on; and how many bytes were dropped (valid once decided).
        self.decided = not prefix
        self.dropped = 0

    def feed(self, data: bytes) -> bytes:
        """What of the continuation is new, as far as that is known; the rest comes with a later call."""
        if self.decided:
            return data
        self._held += data
        # A longer overlap is possible as long as what came occurs in the prefix before its end.
        if self._held and self._prefix.find(self._held, 0, len(self._prefix) - 1) < 0:
            return self.finish()
        return b""

    def finish(self) -> bytes:
        """The end of the continuation: what is still held back and no overlap."""
        held, self._held = self._held, b""
        if self.decided:
            return b""
        self.decided = True
        for length in range(min(len(held), len(self._prefix)), self._least - 1, -1):
            if self._prefix.endswith(held[:length]) and not _run(held[:length]):
                self.dropped = length
                break
        return held[self.dropped :]


def _run(said: bytes) -> bool:
    return len(said) > 1 and said.count(said[:1]) == len(said)


def trim_overlap(prefix: bytes, *, least: int = OVERLAP_BYTES_MIN) -> OverlapTrimmer:
    """Drops from a continuation what it repeats of the end of ``prefix``.

    Exactly: let P be the last :data:`OVERLAP_BYTES_MAX` bytes of ``prefix`` and C the whole continuation.
    The largest n >= ``least`` with P ending in C[:n], C[:n] not one byte repeated, is dropped; the output
    is C[n:], or C where there is no such n. The cuts in which C arrives make no difference. At most len(P)
    bytes are held back, and none after the first byte at which C can no longer be a longer overlap.
    """
    return OverlapTrimmer(prefix[-OVERLAP_BYTES_MAX:], max(least, 1))


class PrefixSkipper:
    """Made by :func:`skip_prefix`."""

    __slots__ = ("_at", "_prefix")

    def __init__(self, prefix: bytes) -> None:
        self._prefix = prefix
        self._at = 0

    @property
    def waiting(self) -> int:
        """Bytes of the prefix that did not come yet."""
        return len(self._prefix) - self._at

    def feed(self, data: bytes) -> bytes:
        """What comes after the prefix.

        Raises InvalidRecord (``conflict``) at the first byte that differs from it.
        """
        known = self._prefix[self._at : self._at + len(data)]
        if not data.startswith(known):
            same = next(at for at, (a, b) in enumerate(zip(known, data, strict=False)) if a != b)
            raise InvalidRecord(
                "conflict",
                f"the looked-up stream differs from what was recorded, at byte {self._at + same} of its "
                "text: it is another answer. Restart the generation instead of going on with it",
            )
        self._at += len(known)
        return data[len(known) :]

    def finish(self) -> None:
        """The end of the stream. Raises InvalidRecord (``conflict``) when it was shorter than the prefix."""
        if self.waiting:
            raise InvalidRecord(
                "conflict",
                f"the looked-up stream ended after {self._at} of the {len(self._prefix)} bytes that were "
                "recorded. Restart the generation instead of going on with it",
            )


def skip_prefix(prefix: bytes) -> PrefixSkipper:
    """Drops the whole of ``prefix`` from a stream that repeats it, byte for byte."""
    return PrefixSkipper(prefix)
