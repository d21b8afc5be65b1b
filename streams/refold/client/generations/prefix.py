"""What of a generation exists already when an attempt goes on: read from its partition, and never said twice.

The text an attempt continues is what the rule has taken before that attempt's own begin: what an earlier
process wrote after it is fenced, so reading up to the begin gives every process the same prefix.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from refold.client.generations.frames import UNDECODABLE, Transcript
from refold.client.generations.limits import GENERATION_BYTES_MAX, RULING_WAIT_S
from refold.core.progress import Batch, Delta, Marker
from refold.errors import TransientError, UsageError

if TYPE_CHECKING:
    from refold.client.generations.backfill import Backfills

#: ``extra`` of the last batch of an answer that has returned, before GenerationFinished: who takes over after
#: it only writes the end, and no model is asked to go on with a complete answer.
COMPLETE: Final = b"complete"

#: Pause while the own begin is not visible yet (its transaction was committed a moment ago).
PAUSE_S: Final = 0.02


@dataclass(frozen=True, slots=True)
class Prefix:
    """``produced``, ``length`` and ``chain`` as the rule counts them at the attempt's begin. ``complete``:
    its answer had come to its end; a finish reason does not say that (more may follow it)."""

    deltas: tuple[Delta, ...] = ()
    produced: int = 0
    length: int = 0
    chain: bytes = b""
    finish: str | None = None
    complete: bool = False

    @property
    def text_bytes(self) -> bytes:
        return b"".join(delta.data for delta in self.deltas if delta.kind == "text")

    @property
    def text(self) -> str:
        return self.text_bytes.decode("utf-8", UNDECODABLE)


NO_PREFIX: Final = Prefix()


async def read_prefix(
    backfills: Backfills, partition: int, key: bytes, generation: str, first: int, attempt: int
) -> Prefix:
    """Read from ``first`` (the begin of the present text) to the begin of ``attempt``.

    Raises NotFound when retention has removed it, UsageError when there is more than a message can hold,
    TransientError when the begin does not come.
    """
    loop = asyncio.get_running_loop()
    deadline = loop.time() + RULING_WAIT_S
    transcript = Transcript(generation)
    deltas: list[Delta] = []
    size = 0
    complete = False
    at = first
    while True:
        end = await backfills.end(partition)
        while at < end:
            placed, at = await backfills.page(partition, key, generation, at, end)
            for item, offset, append_ms in placed:
                frame = transcript.take(item, offset, append_ms)
                if frame is not None and frame.kind == "reset":
                    deltas.clear()
                    size, complete = 0, False
                elif frame is not None and frame.kind == "delta" and isinstance(item, Batch):
                    deltas += item.deltas
                    size += sum(len(delta.data) for delta in item.deltas)
                    complete = item.extra == COMPLETE
                if size > GENERATION_BYTES_MAX:
                    raise UsageError(f"generation {generation} has more content than a message can hold")
                progress = transcript.progress
                if isinstance(item, Marker) and progress is not None and progress.attempt >= attempt:
                    return Prefix(
                        tuple(deltas),
                        progress.produced,
                        progress.length,
                        progress.chain,
                        progress.finish,
                        complete,
                    )
        if loop.time() > deadline:
            raise TransientError(f"the begin of attempt {attempt} of {generation} did not appear in time")
        await asyncio.sleep(PAUSE_S)
