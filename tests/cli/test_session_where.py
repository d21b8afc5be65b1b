"""What ``refold session where`` finds out, from real HTTP ports with fake views behind them."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from types import SimpleNamespace
from typing import Any

from api.fake_owner import FakeView
from client.fake_group import FakeGroup
from refold.api.server import OwnerServer
from refold.api.view import PartitionRow
from refold.cli.session_where import where
from refold.client.owners import Owners
from refold.client.routing import Router

PARTITION = 2


class View(FakeView):
    def __init__(self, *rows: PartitionRow) -> None:
        super().__init__()
        self.rows = list(rows)

    def partitions(self) -> list[PartitionRow]:
        return self.rows


@asynccontextmanager
async def asked(group: FakeGroup, *views: tuple[str, View]) -> AsyncIterator[tuple[Any, Owners]]:
    servers = {}
    for name, view in views:
        servers[name] = OwnerServer(view, metrics=lambda: b"")
        await servers[name].start()
        group.others[name] = servers[name].url
    chat = SimpleNamespace(tenant="t", id="s", partition=PARTITION)
    async with Owners(Router(group), token=None, request_timeout_s=2.0) as owners:  # type: ignore[arg-type]
        try:
            yield chat, owners
        finally:
            for server in servers.values():
                await server.stop()


def copied(behind: int, age_s: float | None) -> PartitionRow:
    return PartitionRow(PARTITION, "standby", 9.0, 1.0, -1, -1, None, behind, age_s)


async def test_owner_its_state_and_every_copy() -> None:
    """Goal: as the workers say it: whoever has a copy, wherever it ought to be."""
    group = FakeGroup()
    live = View(
        PartitionRow(PARTITION, "live", 9.0, 1.0, 7, 7, 0), PartitionRow(1, "live", 9.0, 1.0, 7, 7, 0)
    )
    other = View(PartitionRow(1, "standby", 9.0, 1.0, -1, -1, None, 0, 0.1))
    async with asked(
        group, ("own", live), ("b", View(copied(3, 0.5))), ("c", other), ("d", View(copied(9, None)))
    ) as (
        chat,
        owners,
    ):
        group.owners = {PARTITION: group.others.pop("own")}
        found = await where(chat, owners)
        assert found["owner"] is not None
        assert (found["state"], found["partition"], found["session"]) == ("live", PARTITION, "t/s")
        copies = {
            copy["instance"]: (copy["behind"], copy["age_s"], copy["url"]) for copy in found["standbys"]
        }
        assert copies == {"b": (3, 0.5, group.others["b"]), "d": (9, None, group.others["d"])}


async def test_a_dead_owner_and_none_at_all() -> None:
    """Goal: what does not answer is no reason to say nothing of the copies."""
    for owner in ("http://127.0.0.1:9", None):
        group = FakeGroup({} if owner is None else {PARTITION: owner})
        async with asked(group, ("b", View(copied(0, 0.1)))) as (chat, owners):
            found = await where(chat, owners)
            assert (found["url"], found["state"]) == (owner, None)
            assert [copy["instance"] for copy in found["standbys"]] == ["b"]
