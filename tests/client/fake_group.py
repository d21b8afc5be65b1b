"""A consumer group without Kafka: which worker owns what, and how far it has committed."""

from __future__ import annotations

from refold.client.routing import Owner, Routes


class FakeGroup:
    """Stands for :class:`refold.client.routing.Directory`."""

    def __init__(self, owners: dict[int, str] | None = None) -> None:
        self.owners = dict(owners or {})
        self.members = 1
        #: Workers with an address, by instance, besides those that own something.
        self.others: dict[str, str] = {}
        self.commits: dict[int, int] = {}
        self.looks = 0

    async def look(self) -> Routes:
        self.looks += 1
        owners = {p: Owner(f"w-{url[-4:]}", url) for p, url in self.owners.items()}
        others = [Owner(instance, url) for instance, url in self.others.items()]
        return Routes(owners, self.members, (*dict.fromkeys(owners.values()), *others))

    async def committed(self, partition: int) -> int | None:
        return self.commits.get(partition)
