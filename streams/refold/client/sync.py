"""A thin synchronous face: ``with Refold(…) as rf: rf.session("s").append("hi")``; state, context, recover.

One thread runs one event loop with the asynchronous client in it; every call here waits for its answer.
Calls may come from several threads; order per session is the order in which the calls are made.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import threading
from collections.abc import Coroutine
from types import TracebackType
from typing import Any, Self, TypeVar

from refold.client.client import Refold as AsyncRefold
from refold.client.context import Context, ContextFormat
from refold.client.limits import RULING_TIMEOUT_S
from refold.client.messages import MessageInput
from refold.client.receipts import Receipt as AsyncReceipt
from refold.client.receipts import Ruling
from refold.client.recovery import Recovery
from refold.client.reduced import ReducedPart
from refold.client.session import Session as AsyncSession
from refold.client.snapshots import SnapshotView
from refold.errors import TransientError, UsageError

__all__ = ["Receipt", "Refold", "Session"]

T = TypeVar("T")


class _LoopThread:
    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="refold-client", daemon=True)
        self._stopped = False
        self._lock = threading.Lock()
        self._thread.start()

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        if threading.current_thread() is self._thread:
            work.close()
            raise UsageError("the synchronous client was called from its own loop: use refold.client there")
        with self._lock:
            if self._stopped:
                work.close()
                raise UsageError("the client was closed: use its sessions within its `with` block")
            future = asyncio.run_coroutine_threadsafe(work, self._loop)
        try:
            return future.result()
        except concurrent.futures.CancelledError:
            raise TransientError(
                "another thread closed the client while this call was under way: its outcome is unknown"
            ) from None
        except BaseException:
            # Ctrl-C while waiting: do not leave the call running behind the caller's back.
            future.cancel()
            raise

    @property
    def loop(self) -> asyncio.AbstractEventLoop:
        return self._loop

    def stop(self) -> None:
        """Ends what is still under way: the threads that wait for it would do so for ever."""
        with self._lock:
            self._stopped = True
        asyncio.run_coroutine_threadsafe(_end_all(), self._loop).result()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()


async def _end_all() -> None:
    left = asyncio.all_tasks() - {asyncio.current_task()}
    for task in left:
        task.cancel()
    await asyncio.gather(*left, return_exceptions=True)
    # What other threads ask for is told to them by callbacks that are still to run.
    await asyncio.sleep(0)


class Receipt:
    """As :class:`refold.client.Receipt`; ``ruling()`` blocks."""

    def __init__(self, loop: _LoopThread, receipt: AsyncReceipt) -> None:
        self._loop = loop
        self._receipt = receipt
        self.event_id = receipt.event_id
        self.message_id = receipt.message_id
        self.partition = receipt.partition
        self.offset = receipt.offset

    def ruling(self, timeout: float = RULING_TIMEOUT_S) -> Ruling:
        return self._loop.run(self._receipt.ruling(timeout))

    def __repr__(self) -> str:
        return repr(self._receipt)


class Session:
    """As :class:`refold.client.Session`, blocking."""

    def __init__(self, loop: _LoopThread, session: AsyncSession) -> None:
        self._loop = loop
        self._session = session
        self.tenant = session.tenant
        self.id = session.id

    def append(self, message: MessageInput, **options: Any) -> Receipt:
        """Options as :meth:`refold.client.Session.append`."""
        return Receipt(self._loop, self._loop.run(self._session.append(message, **options)))

    def publish(self, event_type: str, payload: Any, **options: Any) -> Receipt:
        """Any other event; options as :meth:`refold.client.Session.publish`."""
        return Receipt(self._loop, self._loop.run(self._session.publish(event_type, payload, **options)))

    def publish_json(self, event_type: str, payload: Any, **options: Any) -> Receipt:
        return Receipt(self._loop, self._loop.run(self._session.publish_json(event_type, payload, **options)))

    def reduced(self, name: str, **options: Any) -> ReducedPart | None:
        return self._loop.run(self._session.reduced(name, **options))

    def state(self, **options: Any) -> SnapshotView | None:
        return self._loop.run(self._session.state(**options))

    def context(self, format: ContextFormat = "openai", **options: Any) -> Context:  # noqa: A002
        return self._loop.run(self._session.context(format, **options))

    def recover(self, **options: Any) -> Recovery:
        return self._loop.run(self._session.recover(**options))


class Refold:
    """As :class:`refold.client.Refold`, blocking; takes the same arguments."""

    def __init__(self, *args: Any, **options: Any) -> None:
        self._client = AsyncRefold(*args, **options)
        self._loop: _LoopThread | None = None

    def __enter__(self) -> Self:
        if self._loop is not None:
            raise UsageError("the client is open already: make another one, or use this one's sessions")
        loop = _LoopThread()
        try:
            loop.run(self._client.__aenter__())
        except BaseException:
            loop.stop()
            raise
        self._loop = loop
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        loop, self._loop = self._open(), None
        try:
            loop.run(self._client.__aexit__(kind, error, trace))
        finally:
            loop.stop()

    def _open(self) -> _LoopThread:
        if self._loop is None:
            raise UsageError("the client is not open: use `with Refold(...) as rf:`")
        return self._loop

    @property
    def client(self) -> AsyncRefold:
        """The asynchronous client, for coroutines run on :attr:`loop`."""
        self._open()
        return self._client

    @property
    def loop(self) -> asyncio.AbstractEventLoop:
        """The event loop in this client's thread."""
        return self._open().loop

    def session(self, session: str, *, tenant: str | None = None) -> Session:
        return Session(self._open(), self._client.session(session, tenant=tenant))
