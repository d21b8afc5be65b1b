"""A summarizer as a process: signals, drain, exit status.

The first SIGTERM or SIGINT drains: no new summaries, those under way end within ``max_seconds``. A second one
ends the process where it is; what it was at, another does. Exit status as the worker's: 0 drained, 75 the
time was over, 128 + signal after a second one.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from refold.client.agents.worksource import ClientSource
from refold.client.client import Refold
from refold.client.summaries.configured import close, summarizer_of
from refold.client.summaries.limits import CONCURRENCY_DEFAULT, DRAIN_S_DEFAULT
from refold.client.summaries.making import Outcome
from refold.client.summaries.serving import SummaryServer
from refold.draining import CUT_SHORT, drain_on_signal

if TYPE_CHECKING:
    from refold.client.summaries.protocol import Summarizer
    from refold.settings import Settings

#: The event loop's own end, after the drain.
LAST_S: Final = 10.0

#: A line of what happens: its name and fields, nothing of a conversation among them.
Say: TypeAlias = Callable[[str, dict[str, Any]], None]


def run_process(
    settings: Settings,
    say: Say,
    *,
    summarizer: Summarizer | None = None,
    concurrency: int = CONCURRENCY_DEFAULT,
    max_seconds: float = DRAIN_S_DEFAULT,
    once: bool = False,
) -> tuple[int, Counter[str]]:
    """Serve until a signal, or (``once``) what is wanted now. Exit status, and outcomes by their word. Raises
    what opening the client raises. Main thread only."""
    return asyncio.run(_serve(settings, say, summarizer, concurrency, max_seconds, once))


async def _serve(
    settings: Settings,
    say: Say,
    given: Summarizer | None,
    concurrency: int,
    max_seconds: float,
    once: bool,
) -> tuple[int, Counter[str]]:
    stop = asyncio.Event()
    drain_on_signal(
        stop, max_seconds + LAST_S, lambda: say("summarizer_draining", {"max_seconds": max_seconds})
    )
    summarizer = summarizer_of(settings) if given is None else given
    try:
        async with Refold(settings) as rf:
            server = SummaryServer(
                ClientSource(rf),
                summarizer,
                concurrency=concurrency,
                bytes_max=settings.summarizer.text_bytes,
                report=lambda tenant, session, outcome, seconds: say(
                    f"summary_{outcome.what}", _fields(tenant, session, outcome, seconds)
                ),
                follow=not once,
            )
            say("summarizer_started", {"summarizer": summarizer.name, "process": rf.producer_id})
            drained = await server.serve(stop, max_seconds)
    finally:
        if given is None:
            await close(summarizer)
    say("summarizer_stopped", {"drained": drained, **server.counts})
    return 0 if drained else CUT_SHORT, server.counts


def _fields(tenant: str, session: str, outcome: Outcome, seconds: float) -> dict[str, Any]:
    return {
        "tenant": tenant,
        "session": session,
        "code": outcome.code,
        "seq": outcome.seq,
        "messages": outcome.messages,
        "bytes": outcome.bytes,
        "ms": round(seconds * 1000),
    }
