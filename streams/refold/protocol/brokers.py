"""Which broker to ask: bootstrap addresses, leaders of partitions, coordinators; and one connection to each.

What is known is used until an answer or a connection says otherwise; then it is asked anew.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from typing import Final

from refold.protocol import requests
from refold.protocol.connection import Connection, Disconnected
from refold.protocol.dialect import Dialect, spoken
from refold.protocol.requests import Api, Metadata, Place
from refold.protocol.security import Security
from refold.protocol.wire import Reader

Address = tuple[str, int]

#: One attempt to connect. librdkafka gives a connection 30 s; here the next address waits for its turn.
CONNECT_SECONDS_MAX: Final = 3.0


class TooOld(Exception):
    """The broker does not take the versions we speak."""


class Brokers:
    """Blocks; use from one thread at a time."""

    def __init__(self, bootstrap: str, security: Security, client_id: str) -> None:
        self._bootstrap = [_address(part) for part in bootstrap.split(",") if part.strip()]
        self._security = security
        self._client_id = client_id
        self._connections: dict[Address, Connection] = {}
        self._nodes: dict[int, Address] = {}
        self._leaders: dict[Place, int] = {}
        self._coordinators: dict[int, Address] = {}
        self._next = 0
        self._over = False

    def dialect(self, deadline: float) -> Dialect:
        """What the cluster speaks, looked for in what one broker takes. Raises TooOld, Disconnected."""
        offered = self.any(deadline).offered(deadline)
        found = spoken(offered.features)
        for api in found.apis:
            low, high = offered.versions.get(api.key, (0, -1))
            if not low <= api.version <= high:
                raise TooOld(f"the broker takes versions {low} to {high} of API {api.key}, not {api.version}")
        return found

    def connection(self, where: Address, deadline: float) -> Connection:
        """Raises Disconnected, PermissionDenied."""
        found = self._connections.get(where)
        if found is not None and found.open and time.monotonic() < found.ends:
            return found
        if found is not None:
            found.close()
        left = min(deadline - time.monotonic(), CONNECT_SECONDS_MAX)
        if self._over:
            raise Disconnected("closed")
        if left <= 0:
            raise Disconnected(f"{where[0]}:{where[1]}: no time left")
        made = Connection(self._security, *where, self._client_id, left)
        self._connections[where] = made
        if self._over:  # Interrupted while it connected, when it was not among what is interrupted.
            made.close()
            raise Disconnected("closed")
        return made

    def any(self, deadline: float) -> Connection:
        """One that is there, else the next address in turn."""
        for found in self._connections.values():
            if found.open:
                return found
        known = list(dict.fromkeys([*self._nodes.values(), *self._bootstrap]))
        self._next += 1
        return self.connection(known[self._next % len(known)], deadline)

    def elsewhere(self) -> None:
        """What any broker can answer is asked of another one than before: this one may have been cut off from
        the rest, and know nothing new."""
        for found in self._connections.values():
            found.close()

    def coordinator(self, kind: int, key: str, deadline: float) -> tuple[int, Address | None]:
        """Error code, or the address of the coordinator of a group or a transactional id."""
        if (known := self._coordinators.get(kind)) is not None:
            return 0, known
        api = requests.FIND_COORDINATOR
        answer = self.any(deadline).ask(api, requests.find_coordinator(key, kind), deadline)
        error, _, where = requests.read_coordinator(answer)
        if error:
            return error, None
        self._coordinators[kind] = where
        return 0, where

    def forget_coordinator(self, kind: int) -> None:
        self._coordinators.pop(kind, None)

    def leaders(self, places: Iterable[Place], deadline: float) -> dict[Place, Address]:
        """Address by partition, as far as there is a leader."""
        wanted = list(places)
        if unknown := sorted({topic for topic, number in wanted if (topic, number) not in self._leaders}):
            self.learn(unknown, deadline)
        known = {place: self._nodes.get(self._leaders.get(place, -1)) for place in wanted}
        return {place: where for place, where in known.items() if where is not None}

    def learn(self, topics: Sequence[str], deadline: float) -> Metadata:
        """Ask anew where the partitions are led. Raises Disconnected."""
        found = requests.read_metadata(
            self.any(deadline).ask(requests.METADATA, requests.metadata(topics), deadline)
        )
        self._nodes.update(found.nodes)
        self._leaders.update({place: node for place, node in found.leaders.items() if node >= 0})
        return found

    def forget_leader(self, place: Place) -> None:
        self._leaders.pop(place, None)

    def lost(self, where: Address) -> None:
        """The broker may be gone for good: what it led or coordinated is asked for anew."""
        if (found := self._connections.pop(where, None)) is not None:
            found.close()
        self._leaders = {
            place: node for place, node in self._leaders.items() if self._nodes.get(node) != where
        }
        self._coordinators = {kind: there for kind, there in self._coordinators.items() if there != where}

    def interrupt(self) -> None:
        """From another thread: whatever is asked ends with Disconnected, and nothing more is connected."""
        self._over = True
        for found in list(self._connections.values()):
            found.interrupt()

    def close(self) -> None:
        self._over = True
        for found in self._connections.values():
            found.close()

    def ask(self, where: Address, api: Api, body: bytes, deadline: float) -> Reader:
        try:
            return self.connection(where, deadline).ask(api, body, deadline)
        except Disconnected:
            self.lost(where)
            raise


def _address(text: str) -> Address:
    """``host:port``, ``[v6]:port``, with or without a protocol before it."""
    plain = text.strip().rpartition("://")[2]
    host, _, port = plain.rpartition(":")
    if not host or port.endswith("]"):
        host, port = plain, "9092"
    return host.strip("[]"), int(port)
