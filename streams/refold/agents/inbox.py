"""The inbox agent: chunks of one partition, in offset order, go to the engine. Boring on purpose."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from refold.agents.app import RefoldApp


def attach(app: RefoldApp) -> None:
    """Add the agent to ``app``. An exception in its body ends the process (Faust would ack and go on)."""
    topic = app.topic(app.engine.config.topics.inbox, schema=app.raw_schema(), value_serializer="raw")

    async def failed(_agent: Any, error: BaseException) -> None:
        app.engine.failed(error)

    @app.agent(topic, name="inbox", on_error=failed)
    async def inbox(chunks: AsyncIterator[Any]) -> None:
        async for chunk in chunks:
            await app.engine.fold(chunk)
