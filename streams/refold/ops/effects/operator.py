"""The person behind the review queue: looks into the outside world's own book and rules.

It rules only where that is safe: while a process that may still act in a session is frozen or freshly woken,
its calls wait. A real person has the same duty for a call that the outside world cannot void: make sure that
whoever ran it is gone, then say what happened.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any, Final

from refold.client import Refold
from refold.errors import RefoldError
from refold.ops.effects.gatewayclient import GatewayClient
from refold.ops.verify.readback import read_topic
from refold.wire.codec import decode

#: How often the queue is looked at.
LOOK_S: Final = 0.4
#: A request that was on its way when its sender died is executed within milliseconds.
SETTLED_S: Final = 0.5


class Operator:
    """``held``: sessions in which somebody may still act. ``rulings`` counts what was ruled."""

    def __init__(
        self, client: Refold, gateway: GatewayClient, held: Mapping[str, int], say: Callable[[str], None]
    ) -> None:
        self._client = client
        self._gateway = gateway
        self._held = held
        self._say = say
        self.rulings: Counter[str] = Counter()

    async def watch(self) -> None:
        """Rule on what comes, until cancelled."""
        while True:
            names, settings = self._client.connection.names, self._client.settings
            partitions = settings.partitions or 8
            records = await asyncio.to_thread(
                read_topic, settings.kafka_config("reader"), names.review, partitions
            )
            last = {r.key: r.value for rows in records.values() for r in rows}
            for value in last.values():
                if value is None:
                    continue
                item = decode(value, "refold.ReviewItem").record
                if self._held.get(item["session"], 0) > 0:
                    continue
                try:
                    await self._rule(item)
                except RefoldError as err:
                    self._say(f"            review: {err}")
            await asyncio.sleep(LOOK_S)

    async def _rule(self, item: Mapping[str, Any]) -> None:
        session = self._client.session(item["session"])
        rows = await self._gateway.truth(item["session"], item["operation_id"])
        if rows:
            await session.tool_completed(
                item["operation_id"], rows[-1]["result"], reconciled=True, wait="accepted"
            )
            self.rulings["done"] += 1
        else:
            await session.tool_reconciled(
                item["operation_id"],
                "not_done",
                holder="operator",
                call_attempt=item["attempt"],
                wait="accepted",
            )
            self.rulings["not_done"] += 1
