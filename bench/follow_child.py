"""The following process of ``bench.streaming``: ``each`` followers for every named session's generation.

Prints ``ready`` when connected, then one JSON object when all streams have ended: how many chunks came and,
in order of arrival, how long each took from the provider (ms).
"""

from __future__ import annotations

import asyncio
import json
import sys
import time

from refold.client import Refold
from refold.settings import Settings

#: A generation starts within this time of ``ready``.
START_S_MAX = 60.0


async def follow(rf: Refold, name: str, waits: list[float]) -> None:
    session = rf.session(name)
    end = time.monotonic() + START_S_MAX
    while True:
        snapshot = await session.state()
        rows = [] if snapshot is None else snapshot.generations
        if rows:
            break
        if time.monotonic() > end:
            raise TimeoutError(f"{name}: no generation")
        await asyncio.sleep(0.05)
    text = ""
    async for frame in rf.follow(session, rows[-1]["generation_id"]):
        if frame.kind != "delta":
            continue
        now = time.monotonic_ns()
        text += frame.text
        while " word " in text:
            stamp, text = text.split(" word ", 1)
            waits.append((now - int(stamp)) / 1e6)


async def main() -> None:
    bootstrap, prefix, tenant, each, *names = sys.argv[1:]
    waits: list[float] = []
    async with Refold(Settings(topic_prefix=prefix), bootstrap=bootstrap, tenant=tenant) as rf:
        print("ready", flush=True)
        await asyncio.gather(*(follow(rf, name, waits) for name in names for _ in range(int(each))))
    print(json.dumps({"chunks": len(waits), "waits_ms": waits}), flush=True)


if __name__ == "__main__":
    asyncio.run(main())
