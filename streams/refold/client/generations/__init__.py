"""Generations: a model's output as a durable, resumable stream. Use them through ``session.generate``,
``rf.follow`` and ``rf.supervise``.

::

    @rf.generator("reply")
    async def reply(g):
        async for chunk in g.record(provider.stream(g.params, g.prefix)):
            ...

    g = await session.generate(reply, key=request_id, params={"model": "…"})
    return StreamingResponse(g.follow().sse(last_event_id=…), media_type="text/event-stream")

Parts: ``recording`` (provider → topic), ``hub`` and ``track`` (topic → followers), ``follow`` and ``sse``,
``lease``, ``takeover`` and ``supervisor`` (going on after a death), ``service`` (what a client holds of it).
"""

from __future__ import annotations

from refold.client.generations.follow import Follow
from refold.client.generations.frames import Frame, FramePart
from refold.client.generations.generation import Generation, Outcome
from refold.client.generations.lease import LeaseLost
from refold.client.generations.recording import Chunk, ProviderFailed
from refold.client.generations.registry import Generator, Generators
from refold.client.generations.service import Generations

__all__ = [
    "Chunk",
    "Follow",
    "Frame",
    "FramePart",
    "Generation",
    "Generations",
    "Generator",
    "Generators",
    "LeaseLost",
    "Outcome",
    "ProviderFailed",
]
