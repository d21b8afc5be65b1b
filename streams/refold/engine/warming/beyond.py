"""Rule H5: what was handled beyond the committed offset, and how it travels with it.

The committed offset is that of the oldest record that waits. Of what follows it, everything below
:attr:`Beyond.position` was handled, except for the records that wait too. The text is relative to the
committed offset, which it is committed with: run lengths, in turn of waiting and of other offsets, as
variable-length numbers in base64.

Size: at most :data:`PARKED_MAX` runs; a length of ours is 1 byte (2 for the four that can be longer than 63),
a gap 9 bytes at most, since all gaps together are below 2^63: 256 x 10 x 4/3 = 3 414 characters, which with
200 to 500 of the other metadata stays below the 4 096 that brokers take (``offset.metadata.max.bytes``).
"""

from __future__ import annotations

import base64
import binascii
from bisect import bisect_left
from dataclasses import dataclass
from typing import Final

from refold.wire.varint import read_zlong, zlong

#: Waiting records of one partition: what the metadata has room for.
PARKED_MAX: Final = 256


@dataclass(frozen=True, slots=True)
class Beyond:
    """``position``: one past the newest offset that is spoken of; ``parked``: the offsets below it that were
    not handled, ascending. Together with "everything before :attr:`low`" this is all that was handled."""

    position: int
    parked: tuple[int, ...] = ()

    @property
    def low(self) -> int:
        """The offset to commit: nothing before it waits."""
        return self.parked[0] if self.parked else self.position

    def handled(self, offset: int) -> bool:
        if offset >= self.position:
            return False
        at = bisect_left(self.parked, offset)
        return at == len(self.parked) or self.parked[at] != offset

    def waiting(self, position: int) -> tuple[int, ...]:
        """The parked offsets from ``position`` on."""
        return self.parked[bisect_left(self.parked, position) :]

    def since(self, offset: int) -> Beyond:
        """Without what lies before ``offset``: it is not read any more."""
        return Beyond(self.position, self.waiting(offset))

    def encode(self) -> str:
        numbers: list[int] = []
        last = self.low - 1
        for offset in self.parked:
            gap = offset - last - 1
            if gap or not numbers:
                if numbers:
                    numbers.append(gap)
                numbers.append(0)
            numbers[-1] += 1
            last = offset
        numbers.append(self.position - last - 1)
        return base64.b64encode(b"".join(map(zlong, numbers))).decode()

    @classmethod
    def decode(cls, low: int, text: str) -> Beyond:
        """Raises ValueError for what :meth:`encode` does not write."""
        numbers: list[int] = []
        try:
            data, at = base64.b64decode(text, validate=True), 0
            while at < len(data):
                number, at = read_zlong(data, at)
                numbers.append(number)
        except (binascii.Error, IndexError):
            raise ValueError("not what a worker writes") from None
        waiting, others = numbers[::2], numbers[1::2]
        if (
            not waiting
            or len(waiting) != len(others)
            or min(waiting) < 1
            or min(others[:-1], default=1) < 1
            or others[-1] < 0
            or sum(waiting) > PARKED_MAX
        ):
            raise ValueError("not what a worker writes")
        parked: list[int] = []
        at = low
        for count, gap in zip(waiting, others, strict=True):
            parked.extend(range(at, at + count))
            at += count + gap
        return cls(at, tuple(parked))
