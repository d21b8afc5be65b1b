"""A TCP proxy in front of a broker's listener that can hold back what passes: a network cut, delay, or one
kind of Kafka request.

What is held back is not lost but late, as TCP sends again what the network lost: a request that was under way
when the network was cut arrives after it healed, long after its sender gave up. New connections are accepted
and wait likewise. A thread of its own with its own event loop, so that whatever the harness computes delays
nothing.
"""

from __future__ import annotations

import asyncio
import struct
import threading
import time
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from typing import Any, Final

from refold.broker.ports import LOOPBACK, choose
from refold.errors import UnavailableError

#: Of answers, which are passed on as they come.
CHUNK_BYTES: Final = 64 * 1024
#: Kafka's own limit of a request is 100 MiB; ours are a megabyte.
FRAME_BYTES_MAX: Final = 100 * 1024 * 1024
#: Chunks under way in one direction of one connection: then it is the sender who waits.
UNDER_WAY_MAX: Final = 64
START_S_MAX: Final = 10.0
#: A target that takes no connection for this long does not run.
CONNECT_S_MAX: Final = 2.0

#: ``WriteTxnMarkers``: how a transaction's coordinator tells the partitions' leaders how it ended.
WRITE_TXN_MARKERS: Final = 27


@dataclass(slots=True)
class Seen:
    """What was held back or delayed. Written by the proxy's thread only."""

    connections: int = 0
    requests_held: int = 0
    answers_held: int = 0
    delayed: int = 0
    frames: list[bytes] = field(default_factory=list)


class Proxy:
    """Listens on :attr:`port`, passes on to ``target``. Start it, close it; other calls from any thread."""

    def __init__(self, target: int) -> None:
        self.port = choose(None)
        self.target = target
        self.seen = Seen()
        self._loop = asyncio.new_event_loop()
        self._requests = asyncio.Event()
        self._answers = asyncio.Event()
        self._delay_s = 0.0
        #: Requests held whatever else passes: (api key, bytes they must hold).
        self._rule: tuple[int, bytes] | None = None
        self._ruled = asyncio.Event()
        self._started = threading.Event()
        self._stopping = asyncio.Event()
        self._failed: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name=f"proxy-{self.port}", daemon=True)

    def start(self) -> None:
        """Raises UnavailableError when the port cannot be listened on."""
        self._thread.start()
        if not self._started.wait(START_S_MAX) or self._failed is not None:
            raise UnavailableError(f"the proxy cannot listen on port {self.port}: {self._failed}. Try again.")

    def close(self) -> None:
        """Closes all connections."""
        if self._thread.is_alive():
            self._call(self._stopping.set)
            self._thread.join()

    # -- what happens to what passes ----------------------------------------------------------------

    def cut(self, *, requests: bool = True, answers: bool = True) -> None:
        """Hold back one or both directions until :meth:`heal`."""
        if requests:
            self._call(self._requests.clear)
        if answers:
            self._call(self._answers.clear)

    def delay(self, seconds: float) -> None:
        """Each direction takes this much longer from now on."""
        self._delay_s = seconds

    def hold(self, api_key: int, holding: bytes) -> None:
        """Hold requests of this kind that hold these bytes (a topic's name): ``seen.frames``."""
        self._rule = (api_key, holding)
        self._call(self._ruled.clear)

    def heal(self) -> None:
        """Everything passes again, first what was held back."""
        self._delay_s, self._rule = 0.0, None
        for event in (self._requests, self._answers, self._ruled):
            self._call(event.set)

    # -- the proxy's thread -------------------------------------------------------------------------

    def _call(self, what: Callable[[], object]) -> None:
        self._loop.call_soon_threadsafe(what)

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        try:
            self._loop.run_until_complete(self._serve())
        except BaseException as error:  # told by start()
            self._failed = error
            self._started.set()
        finally:
            self._loop.close()

    async def _serve(self) -> None:
        for event in (self._requests, self._answers, self._ruled):
            event.set()
        tasks: set[asyncio.Task[None]] = set()

        def accepted(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            task = asyncio.create_task(self._connection(reader, writer))
            tasks.add(task)
            task.add_done_callback(tasks.discard)

        server = await asyncio.start_server(accepted, LOOPBACK, self.port)
        self._started.set()
        await self._stopping.wait()
        server.close()
        for task in list(tasks):
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _connection(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.seen.connections += 1
        onward: asyncio.StreamWriter | None = None
        try:
            await self._requests.wait()
            back, forth = await asyncio.wait_for(
                asyncio.open_connection(LOOPBACK, self.target), CONNECT_S_MAX
            )
            onward = forth
            ways = [
                asyncio.create_task(self._way(_frames(reader), forth, self._request_passes)),
                asyncio.create_task(self._way(_chunks(back), writer, self._answer_passes)),
            ]
            try:
                # Where one side has gone, the other one is told: a request that is held goes nowhere then.
                await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
            finally:
                for way in ways:
                    way.cancel()
                await asyncio.gather(*ways, return_exceptions=True)
        except (OSError, TimeoutError):
            pass  # The target is away: the client sees a closed connection, as from a host that refuses.
        finally:
            for side in (writer, onward):
                if side is not None:
                    side.close()

    async def _way(
        self,
        read: Callable[[], Coroutine[Any, Any, bytes]],
        writer: asyncio.StreamWriter,
        passes: Callable[[bytes], Coroutine[Any, Any, None]],
    ) -> None:
        """One direction: read ahead, so that a delay is a delay and not a limit of the rate."""
        under_way: asyncio.Queue[tuple[float, bytes]] = asyncio.Queue(UNDER_WAY_MAX)

        async def fill() -> None:
            while data := await read():
                await under_way.put((time.monotonic(), data))
            await under_way.put((time.monotonic(), b""))

        filling = asyncio.create_task(fill())
        try:
            while True:
                since, data = await under_way.get()
                await passes(data)
                if self._delay_s:
                    self.seen.delayed += 1
                    await asyncio.sleep(max(0.0, since + self._delay_s - time.monotonic()))
                if not data:
                    return
                writer.write(data)
                await writer.drain()
        except OSError:
            return
        finally:
            filling.cancel()

    async def _request_passes(self, frame: bytes) -> None:
        if not self._requests.is_set():
            self.seen.requests_held += bool(frame)
            await self._requests.wait()
        rule = self._rule
        if rule is not None and int.from_bytes(frame[4:6]) == rule[0] and rule[1] in frame:
            self.seen.frames.append(frame)
            await self._ruled.wait()

    async def _answer_passes(self, data: bytes) -> None:
        if not self._answers.is_set():
            self.seen.answers_held += bool(data)
            await self._answers.wait()


def _frames(reader: asyncio.StreamReader) -> Callable[[], Coroutine[Any, Any, bytes]]:
    """Requests, whole, with their length in front. Empty at the end, and where a request has none."""

    async def read() -> bytes:
        try:
            head = await reader.readexactly(4)
            (size,) = struct.unpack(">i", head)
            if not 0 < size <= FRAME_BYTES_MAX:
                return b""
            return head + await reader.readexactly(size)
        except (asyncio.IncompleteReadError, OSError):
            return b""

    return read


def _chunks(reader: asyncio.StreamReader) -> Callable[[], Coroutine[Any, Any, bytes]]:
    async def read() -> bytes:
        try:
            return await reader.read(CHUNK_BYTES)
        except OSError:
            return b""

    return read
