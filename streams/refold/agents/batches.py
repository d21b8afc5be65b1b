"""The batches agent: chunks of one partition, in offset order, go to the engine. As boring as the inbox's."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from refold.agents.app import RefoldApp


def attach(app: RefoldApp) -> None:
    """Add the agent to ``app``, whose ``_on_agent_error`` ends the process when the body raises."""
    topic = app.topic(app.engine.config.topics.batches, schema=app.raw_schema(), value_serializer="raw")

    @app.agent(topic, name="batches")
    async def batches(chunks: AsyncIterator[Any]) -> None:
        async for chunk in chunks:
            await app.engine.fold_batches(chunk)
