"""An open client around the work of one command."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, TypeVar

from refold.cli.options import settings_for

if TYPE_CHECKING:
    from refold.client import Refold

T = TypeVar("T")


def with_client(
    bootstrap: str | None, prefix: str | None, tenant: str | None, work: Callable[[Refold], Awaitable[T]]
) -> T:
    """Run ``work`` in an open client. Blocks until it has ended."""
    from refold.client import Refold

    async def run() -> T:
        async with Refold(settings_for(bootstrap=bootstrap, prefix=prefix), tenant=tenant) as rf:
            return await work(rf)

    return asyncio.run(run())
