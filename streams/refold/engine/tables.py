"""Faust's TableManager, replaced: state is the engine's, restored by rule T, so Faust has no tables to
recover.

Tables that need Faust's own changelog (windowed, Set, Global) would be outside the transaction: adding one
raises at start, not at the first write.
"""

from __future__ import annotations

from typing import Any

from faust.tables import TableManager

from refold.errors import UsageError


class EngineTables(TableManager):
    """No tables, no recovery; ready at once (upstream sleeps a second)."""

    mundane_level = "debug"

    def add(self, table: Any) -> Any:
        raise UsageError(
            f"Faust table {table.name!r}: its changelog would be outside refold's transaction. Keep state"
            " in the"
            " session (events, facts, a reducer)"
        )

    async def on_start(self) -> None:
        self._tables_finalized.set()
        self._tables_registered.set()

    async def on_stop(self) -> None:
        await self.app._fetcher.stop()

    def on_partitions_revoked(self, revoked: set[Any]) -> None:
        """Nothing to stop: the engine's barrier (rule R) has done it."""

    async def on_rebalance(
        self, assigned: set[Any], revoked: set[Any], newly_assigned: set[Any], generation_id: int = 0
    ) -> None:
        """Nothing to recover: the engine restores each partition (rule T)."""
