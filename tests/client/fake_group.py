"""A consumer group without Kafka: which worker owns what, and how far it has committed."""

from __future__ import annotations

from refold.client.routing import Owner, Routes


class FakeGroup:
    """Stands for :class:`refold.client.routing.Directory`."""

    def __init__(self, owners: dict[int, str] | None = None) -> None:
        self.owners = dict(owners or {})
        self.members = 1
        self.commits: dict[int, int] = {}
        self.looks = 0

    async def look(self) -> Routes:
        self.looks += 1
        return Routes({p: Owner(f"w-{url[-4:]}", url) for p, url in self.owners.items()}, self.members)

    async def committed(self, partition: int) -> int | None:
        return self.commits.get(partition)
