"""The person behind the review queue: looks into the outside world's own book and rules.

It rules only where that is safe: while a process that may still act in a session is frozen or freshly woken,
its calls wait. A real person has the same duty for a call that the outside world cannot void: make sure that
whoever ran it is gone, then say what happened.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Mapping
from typing import Final

from refold.cli.review_items import waiting_items
from refold.cli.review_ruling import Ruling, Verb, resolve
from refold.client import Refold
from refold.core.reviews import ReviewItem
from refold.errors import NotFound, TransientError
from refold.ops.effects.gatewayclient import GatewayClient

#: How often the queue is looked at.
LOOK_S: Final = 0.4
#: Who rules, in the journal.
BY: Final = "verify"


class Operator:
    """``held``: sessions in which somebody may still act. ``rulings`` counts what was ruled."""

    def __init__(self, client: Refold, gateway: GatewayClient, held: Mapping[str, int]) -> None:
        self._client = client
        self._gateway = gateway
        self._held = held
        self.rulings: Counter[str] = Counter()

    async def watch(self) -> None:
        """Rule on what comes, until cancelled."""
        while True:
            for item in await waiting_items(self._client):
                if not self._held.get(item.session, 0):
                    await self._rule(item)
            await asyncio.sleep(LOOK_S)

    async def _rule(self, item: ReviewItem) -> None:
        ran = await self._gateway.truth(item.session, item.operation_id)
        verb: Verb = "done" if ran else "not_done"
        ruling = Ruling(verb, ran[-1]["result"] if ran else None, BY, "the gateway's ledger says so")
        try:
            await resolve(self._client.session(item.session), item.operation_id, ruling)
        except (NotFound, TransientError):
            return  # evidence came meanwhile, or nobody answers now: the next look tells
        self.rulings[verb] += 1
