"""An open client around the work of one command."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from typing import TYPE_CHECKING, TypeVar

from refold.cli.options import settings_for
from refold.cli.waiting import waiting

if TYPE_CHECKING:
    from refold.client import Refold
    from refold.settings import Settings

T = TypeVar("T")


def with_client(
    bootstrap: str | None, prefix: str | None, tenant: str | None, work: Callable[[Refold], Awaitable[T]]
) -> T:
    """Run ``work`` in an open client. Blocks until it has ended."""
    from refold.client import Refold

    settings = settings_for(bootstrap=bootstrap, prefix=prefix)

    async def run() -> T:
        async with opened(Refold(settings, tenant=tenant), settings) as rf:
            return await work(rf)

    return asyncio.run(run())


@asynccontextmanager
async def opened(rf: Refold, settings: Settings) -> AsyncIterator[Refold]:
    """The client, open. Says that it waits where no broker answers for a while."""
    from refold.client.connection import METADATA_TIMEOUT_S

    async with AsyncExitStack() as stack:
        with waiting(settings.kafka.bootstrap, METADATA_TIMEOUT_S):
            await stack.enter_async_context(rf)
        yield rf
