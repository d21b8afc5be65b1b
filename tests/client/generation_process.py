"""A process that generates, for tests that kill, stop and wake it; its generator can be imported as well.

``python generation_process.py BOOTSTRAP PREFIX SESSION KEY JSON`` generates one story and prints a line for
each thing that happens (``accepted``, ``answering``, ``chunk``, ``lost``, ``ended …``), so that a test can
wait for it. Its story keeps time with the recording and not with the clock: the next piece is said when the
one before is recorded, so a busy machine tells it in as many batches as an idle one, only later.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import queue
import signal
import subprocess
import sys
import threading
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

from refold.client import Generation, LeaseLost, Refold
from refold.settings import Settings

STORY = "story"

#: A process that takes this long to say something hangs.
LINE_S_MAX = 60.0

#: A piece that makes no chunk of its own (it was known already) must not hold the story up.
RECORDED_S_MAX = 1.0


def story_text(words: int) -> str:
    return " ".join(f"word-{n:04d}-é" for n in range(words))


async def provider(words: int, pace_s: float, said: str, again: int = 0) -> AsyncIterator[str]:
    """What follows ``said``, the last ``again`` characters of it once more, a few characters at a time."""
    rest = story_text(words)[max(0, len(said) - again) :]
    for at in range(0, len(rest), 7):
        yield rest[at : at + 7]
        await asyncio.sleep(pace_s)


async def in_step(pieces: AsyncIterator[str], recorded: asyncio.Event) -> AsyncIterator[str]:
    """Each piece when the one before it was recorded: every batch holds one."""
    async for piece in pieces:
        recorded.clear()
        yield piece
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(recorded.wait(), RECORDED_S_MAX)


def say(*what: Any) -> None:
    print(*what, flush=True)


async def story(g: Generation) -> None:
    """``params``: words, pace (seconds between pieces), again (characters repeated on going on),
    fail_after."""
    params = g.params
    count = 0
    async for _ in g.record(
        provider(params["words"], params["pace"], g.prefix, params.get("again", 0) if g.prefix else 0),
        format="text",
    ):
        count += 1
        if count == params.get("fail_after"):
            raise ValueError("the answer broke")


async def speaking_story(g: Generation) -> None:
    """The same, saying what happens."""
    say("answering", g.attempt, g.mode)
    params, recorded = g.params, asyncio.Event()
    pieces = in_step(provider(params["words"], params["pace"], g.prefix), recorded)
    try:
        async for chunk in g.record(pieces, format="text"):
            say("chunk", chunk.seq)
            recorded.set()
    except LeaseLost:
        say("lost")
        raise


async def main(bootstrap: str, prefix: str, session: str, key: str, options: dict[str, Any]) -> None:
    rf = Refold(Settings(topic_prefix=prefix), bootstrap=bootstrap)
    rf.generator(STORY)(speaking_story)
    async with rf:
        g = await rf.session(session).generate(
            speaking_story, key=key, params=options["params"], lease=options.get("lease", 1.0)
        )
        say("accepted", g.id)
        outcome = await g.result(LINE_S_MAX)
        say("ended", outcome.state, outcome.seq, len(outcome.text))


class LostEarly(AssertionError):
    """The process lost its lease before the test did anything to it: the machine is busy."""


class Process:
    """The program above as a child; lines come through a thread, so that waiting has a deadline."""

    def __init__(self, bootstrap: str, prefix: str, session: str, key: str, **options: Any) -> None:
        environment = {name: value for name, value in os.environ.items() if not name.startswith("REFOLD_")}
        self.process = subprocess.Popen(
            [sys.executable, str(Path(__file__)), bootstrap, prefix, session, key, json.dumps(options)],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            env=environment,
        )
        self.seen: list[str] = []
        self._lines: queue.SimpleQueue[str | None] = queue.SimpleQueue()
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self._lines.put(line.rstrip("\n"))
        self._lines.put(None)

    async def line(self, begins: str, timeout_s: float = LINE_S_MAX) -> str:
        """Wait for a line that begins so. Raises :class:`LostEarly` when it lost its lease instead, and
        AssertionError with the last lines when neither comes."""
        deadline = time.monotonic() + timeout_s
        while time.monotonic() < deadline:
            try:
                line = self._lines.get_nowait()
            except queue.Empty:
                await asyncio.sleep(0.01)
                continue
            if line is None:
                break
            self.seen.append(line)
            if line.startswith(begins):
                return line
            if line == "lost":
                raise LostEarly(f"lease lost while waiting for {begins!r}: {self.seen[-20:]}")
        raise AssertionError(f"no line {begins!r}: {self.seen[-20:]}")

    def signal(self, number: int) -> None:
        self.process.send_signal(number)

    def kill(self) -> None:
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGKILL)
        self.process.wait(30)
        if self.process.stdout is not None:
            self.process.stdout.close()


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:5], json.loads(sys.argv[5])))  # type: ignore[misc]
