"""The pump's wait between two commits: an overlay that is full ends it, one that is not does not."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path

from refold.engine.config import EngineConfig
from refold.engine.engine import Engine
from refold.engine.overlay import Overlay

#: Longer than any test may take: who waits for it to pass has not been woken.
LONG_S = 600.0
UNTIL_S = 10.0
CONFIG = EngineConfig(kafka={}, prefix="t", instance="w", data_dir=Path("unused"))


def resting() -> Engine:
    """As much of an engine as rests and is filled."""
    engine = Engine.__new__(Engine)
    engine.config = replace(CONFIG, overlay_bytes_max=101)
    engine._loop = asyncio.get_running_loop()
    engine._go = asyncio.Event()
    engine._go.set()
    return engine


async def test_a_full_overlay_is_committed_at_once() -> None:
    """The fold stands still while it is full, so there is nothing to wait for."""
    engine, overlay = resting(), Overlay()
    rest = asyncio.create_task(engine._rest(LONG_S))
    overlay.bytes = 49
    for _ in range(3):
        await asyncio.sleep(0)
        engine._fills(overlay)
    assert not rest.done()
    assert engine._go.is_set()
    overlay.bytes = 50
    engine._fills(overlay)
    await asyncio.wait_for(rest, UNTIL_S)
    assert not engine._go.is_set()
    # Whoever makes room elsewhere meanwhile has not made any here; full is full for all who ask.
    engine.current = overlay
    engine._let_go()
    assert not engine._go.is_set()
    engine.current = Overlay()
    engine._let_go()
    assert engine._go.is_set()


async def test_an_overlay_that_does_not_fill_is_waited_for_no_longer_than_said() -> None:
    engine, overlay = resting(), Overlay()
    await asyncio.wait_for(engine._rest(0.001), UNTIL_S)
    # Full while nobody rests: the fold stops, and the next rest is one like any other.
    overlay.bytes = 50
    engine._fills(overlay)
    assert not engine._go.is_set()
    await asyncio.wait_for(engine._rest(0.001), UNTIL_S)
