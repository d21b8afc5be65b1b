"""Do the owners serve what is in the state topic? Their disks are where a wrong order of writes would
show.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Final
from urllib.parse import quote

import aiohttp

from refold.ops.fleet import Fleet
from refold.ops.verify.readback import Record

REQUEST_S_MAX: Final = 10.0
#: Requests at once; the workers answer from memory or disk in a millisecond.
CONCURRENT_MAX: Final = 16


async def served_differences(
    fleet: Fleet, owners: Mapping[int, str], state: Mapping[int, Sequence[Record]]
) -> list[str]:
    """A line per session whose owner serves other bytes than the last record of the state topic."""
    urls = {worker.name: worker.url for worker in fleet.workers}
    limit = asyncio.Semaphore(CONCURRENT_MAX)
    timeout = aiohttp.ClientTimeout(total=REQUEST_S_MAX)

    async with aiohttp.ClientSession(timeout=timeout, headers={"Accept": "application/avro"}) as http:

        async def check(partition: int, key: bytes, value: bytes) -> str | None:
            name = key.decode()
            url = urls.get(owners.get(partition, ""))
            if url is None:
                return f"served {name}: nobody owns partition {partition}"
            tenant, _, session = name.partition("/")
            async with limit:
                try:
                    async with http.get(
                        f"{url}/v1/sessions/{quote(tenant, safe='')}/{quote(session, safe='')}"
                    ) as answer:
                        body = await answer.read()
                        if answer.status != 200:
                            return f"served {name}: {answer.status} from its owner"
                except (aiohttp.ClientError, TimeoutError) as err:
                    return f"served {name}: no answer from its owner ({type(err).__name__})"
            return None if body == value else f"served {name}: not the bytes of the state topic"

        last = {
            (partition, record.key or b""): record.value
            for partition, records in state.items()
            for record in records
        }
        answers = await asyncio.gather(
            *(check(p, key, value) for (p, key), value in last.items() if value is not None)
        )
    return [line for line in answers if line is not None]
