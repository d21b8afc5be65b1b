"""Recorded inputs and outputs read back: from the row, from the journal where it is too long for the row,
from the blob store where it is too long for an event.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from refold.client.agents.limits import OUTPUT_READS_MAX
from refold.client.agents.rows import RunRow, StepRow
from refold.client.agents.values import decode, digest
from refold.client.tools.rows import event_at
from refold.errors import InvariantViolation, NotFound

if TYPE_CHECKING:
    from refold.client.session import Session


class Outputs:
    """Of one run in one process; reads side by side, a few at once. Raises NotFound where the journal or the
    store no longer has the bytes, InvariantViolation where they are not the recorded ones."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._places = asyncio.Semaphore(OUTPUT_READS_MAX)

    async def of_step(self, row: StepRow) -> Any:
        data = await self._bytes("output", row.output, row.output_ref, row.output_seq)
        if row.output_digest is not None and digest(data) != row.output_digest:
            raise InvariantViolation(
                f"the recorded output of step {row.step_id} at seq {row.output_seq} does not have the "
                "recorded digest: report this as a bug of refold"
            )
        return decode(data)

    async def input(self, row: RunRow) -> Any:
        """``None`` where the run was started without one."""
        return await self._of_run("input", row, row.data["started_seq"])

    async def result(self, row: RunRow) -> Any:
        """Of a completed run. Its row was last changed by its end."""
        return await self._of_run("output", row, row.data["updated_seq"])

    async def _of_run(self, field: str, row: RunRow, seq: int) -> Any:
        inline, ref = row.data[field], row.data[f"{field}_ref"]
        if inline is None and ref is None and row.data[f"{field}_digest"] is None:
            return None
        return decode(await self._bytes(field, inline, ref, seq))

    async def _bytes(
        self, field: str, inline: bytes | None, ref: Mapping[str, Any] | None, seq: int
    ) -> bytes:
        if inline is not None:
            return inline
        async with self._places:
            if ref is None:
                payload = (await event_at(self._session, seq)).payload or {}
                inline, ref = payload.get(field), payload.get(f"{field}_ref")
                if inline is not None:
                    return bytes(inline)
            if ref is None:
                raise NotFound(f"event {seq} of session {self._session.id} has no {field}")
            store = self._session._connection.blobs
            return bytes(await asyncio.to_thread(store.get, ref))
