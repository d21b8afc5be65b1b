"""Every recorded stream through ``g.record``, its recording process killed at random points, two clients
following.

``python -m tests.client.recorded_streams --seed N [--json]``: one of the clients reconnects by Last-Event-ID
after every few events. For every stream: the text of both is byte for byte the source's (read without the
parsers), each sequence number came once and none is missing, the fold's digest is the text's, and the owner
has both clients' acks at the last batch. Prints the counts; exit 1 when one of them is wrong.

Streams are recorded a few at a time by one of two processes; both supervise, so the other goes on: by looking
the response up, by continuing, or from the beginning, drawn per stream.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import hashlib
import json
import os
import random
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import AsyncIterator, Sequence
from contextlib import ExitStack, aclosing
from pathlib import Path
from typing import Any

import orjson

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from client.worker_process import refold, worker
from formats.stream_readings import Recording, reading_of, recordings
from refold.client import Frame, Generation, Refold
from refold.errors import RefoldError
from refold.formats.streams import parser_for
from refold.settings import Settings

LEASE_S = 0.8
#: Streams at once; more would only wait for the two processes' CPU.
GROUP = 8
#: A stream takes about this long, so that kills come in the middle.
STREAM_S = 2.0
KILLS_PER_GROUP_MAX = 3
#: A stream that has not ended by then is lost.
STREAM_S_MAX = 90.0
MODES = ("looked-up", "continued", "restarted")


def fails(recording: Recording) -> bool:
    """Whether the provider ended the stream with an error."""
    parser = parser_for("auto")
    for payload in recording.payloads:
        parser.feed(payload)
    return parser.error is not None


def modes_of(recording: Recording) -> tuple[str, ...]:
    """How it can be gone on with: only a text is continued, an error must come again."""
    reading = reading_of(recording)[1]
    if fails(recording):
        return ("restarted",)
    return MODES if reading.text and not reading.arguments else ("looked-up", "restarted")


# The recording processes


async def played(recording: Recording) -> AsyncIterator[Any]:
    pause = STREAM_S / len(recording.payloads)
    for payload in recording.payloads:
        yield payload
        await asyncio.sleep(pause)


async def rest_of(text: str) -> AsyncIterator[str]:
    size = max(1, len(text) // 40)
    for at in range(0, len(text), size):
        yield text[at : at + size]
        await asyncio.sleep(STREAM_S / 40)


async def child(bootstrap: str, prefix: str) -> None:
    """Record what is asked for on stdin, one JSON object per line; supervise meanwhile."""
    sources = recordings()
    rf = Refold(Settings(topic_prefix=prefix), bootstrap=bootstrap)

    async def whole(g: Generation) -> None:
        async for _ in g.record(played(sources[g.params["index"]])):
            pass

    async def look_up(g: Generation) -> AsyncIterator[Any]:
        return played(sources[g.params["index"]])

    async def on(g: Generation) -> None:
        source = sources[g.params["index"]]
        if not g.prefix:
            await whole(g)
            return
        async for _ in g.record(rest_of(reading_of(source)[1].text[len(g.prefix) :]), format="text"):
            pass

    async def again(g: Generation) -> None:
        await whole(g)

    rf.generator("looked-up", lookup=look_up, mode="restart")(whole)
    rf.generator("continued", overlap=False)(on)
    rf.generator("restarted", mode="restart")(again)
    loop = asyncio.get_running_loop()
    async with rf:
        supervising = asyncio.create_task(rf.supervise())
        print("ready", flush=True)
        while line := await loop.run_in_executor(None, sys.stdin.readline):
            task = json.loads(line)
            g = await rf.session(task["session"]).generate(
                task["mode"], key="stream", params={"index": task["index"]}, lease=LEASE_S
            )
            print(json.dumps({"session": task["session"], "generation": g.id}), flush=True)
        supervising.cancel()


class Child:
    def __init__(self, bootstrap: str, prefix: str) -> None:
        environment = {
            name: value for name, value in os.environ.items() if not name.startswith("REFOLD_BOOT")
        }
        self.process = subprocess.Popen(
            [sys.executable, __file__, "--child", bootstrap, prefix],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=environment,
        )

    async def line(self) -> bytes:
        assert self.process.stdout is not None
        found = await asyncio.to_thread(self.process.stdout.readline)
        if not found:
            raise RuntimeError("a recording process ended by itself")
        return found

    def ask(self, **task: Any) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps(task).encode() + b"\n")
        self.process.stdin.flush()

    def kill(self) -> None:
        self.process.kill()
        self.process.wait(30)
        for pipe in (self.process.stdin, self.process.stdout):
            if pipe is not None:
                with contextlib.suppress(BrokenPipeError):
                    pipe.close()


# The clients


class Seen:
    """What one client has: its text, and the sequence numbers since the last reset."""

    def __init__(self) -> None:
        self.text = ""
        self.seqs: list[int] = []
        self.repeated = 0
        self.resets = 0
        self.reconnects = 0
        self.state = ""
        self.attempt = 0

    def take(self, kind: str, attempt: int, seq: int, text: str, state: str) -> None:
        if kind == "reset":
            self.text, self.seqs = "", []
            self.resets += 1
            self.attempt = attempt
            return
        self.text += text
        if kind == "delta":
            self.repeated += seq in self.seqs
            self.seqs.append(seq)
        else:
            self.state = state

    @property
    def missing(self) -> int:
        return max(self.seqs, default=0) - len(set(self.seqs))


async def page(rf: Refold, session: str, generation: str) -> Seen:
    """A client that stays, and acks what it has at the end."""
    seen = Seen()
    follow = rf.follow(session, generation, client="page")
    last: Frame | None = None
    async for frame in follow:
        seen.take(frame.kind, frame.attempt, frame.seq, frame.text, frame.state)
        last = frame
    if last is not None:
        await follow.ack(last)
    return seen


async def browser(rf: Refold, session: str, generation: str, rng: random.Random) -> Seen:
    """A client whose connection breaks; it comes back with the last id it was given."""
    seen, last_id = Seen(), None
    while not seen.state:
        left = rng.randrange(1, 12)
        follow = rf.follow(session, generation, client="browser")
        async with aclosing(follow.sse(last_event_id=last_id, heartbeat=1.0)) as body:
            async for raw in body:
                fields = dict(line.split(": ", 1) for line in raw.decode().splitlines() if ": " in line)
                if "event" not in fields:
                    continue
                last_id = fields["id"]
                _, attempt, seq = last_id.rsplit(":", 2)
                data = orjson.loads(fields["data"])
                seen.take(fields["event"], int(attempt), int(seq), data["text"], data.get("state", ""))
                left -= 1
                if left == 0 and not seen.state:
                    seen.reconnects += 1
                    break
    return seen


# The run


class Run:
    def __init__(self, bootstrap: str, prefix: str, seed: int) -> None:
        self.bootstrap = bootstrap
        self.prefix = prefix
        self.rng = random.Random(seed)
        self.counts = dict.fromkeys(
            (
                *(
                    "streams",
                    "chunks",
                    "text_bytes",
                    "batches",
                    "kills",
                    "taken_over",
                    "reconnects",
                    "resets",
                ),
                *(
                    "text_mismatches",
                    "repeated",
                    "missing",
                    "digest_mismatches",
                    "ack_errors",
                    "state_errors",
                ),
            ),
            0,
        )
        self.wrong: list[str] = []

    async def play(self, sources: Sequence[tuple[int, Recording]]) -> None:
        async with Refold(Settings(topic_prefix=self.prefix), bootstrap=self.bootstrap) as rf:
            children = [Child(self.bootstrap, self.prefix) for _ in range(2)]
            try:
                for one in children:
                    await one.line()
                for at in range(0, len(sources), GROUP):
                    await self._group(rf, children, sources[at : at + GROUP])
            finally:
                for one in children:
                    one.kill()

    async def _group(
        self, rf: Refold, children: list[Child], sources: Sequence[tuple[int, Recording]]
    ) -> None:
        watched: list[asyncio.Task[None]] = []
        for index, source in sources:
            session = f"stream-{index}"
            children[0].ask(session=session, index=index, mode=self.rng.choice(modes_of(source)))
            found = json.loads(await children[0].line())
            watched.append(asyncio.create_task(self._stream(rf, source, session, found["generation"])))
        every = asyncio.gather(*watched)
        # The first in the middle of the recording; further ones may hit whoever has taken over.
        for _ in range(self.rng.randint(1, KILLS_PER_GROUP_MAX)):
            await asyncio.wait([every], timeout=self.rng.uniform(0.2, 1.0) * STREAM_S)
            if every.done():
                break
            children.pop(0).kill()
            self.counts["kills"] += 1
            children.append(Child(self.bootstrap, self.prefix))
            await children[-1].line()
        await every

    async def _stream(self, rf: Refold, source: Recording, session: str, generation: str) -> None:
        _, reading = reading_of(source)
        rng = random.Random(self.rng.random())
        try:
            async with asyncio.timeout(STREAM_S_MAX):
                both = await asyncio.gather(
                    page(rf, session, generation), browser(rf, session, generation, rng)
                )
                answer = await self._settled(rf, session, generation)
        except (TimeoutError, RefoldError) as error:
            self._count("state_errors", f"{source.name}: {error!r}")
            return
        row, progress = answer["row"], answer["progress"]
        counts = self.counts
        counts["streams"] += 1
        counts["chunks"] += len(source.payloads)
        counts["text_bytes"] += len(reading.text.encode())
        counts["batches"] += progress["produced"]
        counts["taken_over"] += row["attempt"] - 1
        for seen in both:
            counts["resets"] += seen.resets
            counts["reconnects"] += seen.reconnects
            if seen.text.encode() != reading.text.encode():
                self._count("text_mismatches", f"{source.name}: text")
            if seen.repeated:
                self._count("repeated", f"{source.name}: repeated", seen.repeated)
            if seen.missing or max(seen.seqs, default=0) != progress["produced"]:
                self._count("missing", f"{source.name}: missing", max(1, seen.missing))
            if seen.state != ("failed" if fails(source) else "finished"):
                self._count("state_errors", f"{source.name}: {seen.state}")
        if row["state"] == "finished" and row["sha256"] != hashlib.sha256(reading.text.encode()).hexdigest():
            self._count("digest_mismatches", f"{source.name}: digest")
        acks = {ack["client"]: ack["seq"] for ack in progress["acks"]}
        if acks != {"page": progress["produced"], "browser": progress["produced"]}:
            self._count("ack_errors", f"{source.name}: acks {acks} of {progress['produced']}")

    def _count(self, name: str, what: str, by: int = 1) -> None:
        self.counts[name] += by
        self.wrong.append(what)

    async def _settled(self, rf: Refold, session: str, generation: str) -> dict[str, Any]:
        """The owner's answer once both clients' last acks have come, or did not within ten seconds."""
        s = rf.session(session)
        deadline = time.monotonic() + 10
        while True:
            answer = await rf.connection.owners.generation(
                s.partition, s.tenant, s.id, generation, wait_ms=0, timeout_s=10
            )
            assert answer is not None
            progress = answer["progress"]
            told = [ack["client"] for ack in progress["acks"] if ack["seq"] == progress["produced"]]
            if len(told) == 2 or time.monotonic() > deadline:
                return answer
            await asyncio.sleep(0.05)

    @property
    def good(self) -> bool:
        return not self.wrong and self.counts["streams"] > 0


def run(bootstrap: str, directory: Path, *, seed: int, streams: int | None = None) -> Run:
    """Record all streams, or ``streams`` of them drawn by the seed. Starts a worker; blocks."""
    prefix = f"rec-{uuid.uuid4().hex[:8]}"
    refold(bootstrap, prefix, "topology", "apply", "--partitions", "4")
    sources = list(enumerate(recordings()))
    random.Random(seed).shuffle(sources)
    made = Run(bootstrap, prefix, seed)
    with worker(bootstrap, prefix, directory, "w-0"):
        asyncio.run(made.play(sources[:streams]))
    return made


def main(argv: Sequence[str]) -> int:
    if argv[:1] == ["--child"]:
        asyncio.run(child(*argv[1:3]))
        return 0
    parser = argparse.ArgumentParser(prog="python -m tests.client.recorded_streams", description=__doc__)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--streams", type=int, help="only so many, drawn by the seed")
    parser.add_argument("--json", action="store_true", help="one object on stdout, nothing else")
    options = parser.parse_args(argv)
    if not recordings():
        print("the recorded streams are not there: set REFOLD_SHARED_DATA", file=sys.stderr)
        return 66
    with ExitStack() as stack:
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="refold-streams-")))
        bootstrap = os.environ.get("REFOLD_TEST_BOOTSTRAP")
        if bootstrap is None:
            from refold.broker import EmbeddedBroker

            bootstrap = stack.enter_context(EmbeddedBroker(directory / "kafka")).bootstrap
        made = run(bootstrap, directory, seed=options.seed, streams=options.streams)
    if options.json:
        print(json.dumps({"seed": options.seed, **made.counts}))
    else:
        for name, value in made.counts.items():
            print(f"{name:>18} {value}")
    for line in made.wrong:
        print(line, file=sys.stderr)
    return 0 if made.good else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
