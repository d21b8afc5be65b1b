"""Who owns a partition: read from the group description, cached, looked up again when an answer says so.

The ``client.id`` of every worker's group member is ``refold|<instance>|<url>`` (architecture.md, section 8),
so the group coordinator is the only directory there is: no service to run, none to get out of date.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from confluent_kafka import KafkaError, KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient

from refold.client.limits import HELD_S_MAX, ROUTE_AGE_MAX_S, ROUTE_REFRESH_MIN_S
from refold.client.watch import Watch
from refold.core.rendezvous import ranking
from refold.errors import PermissionDenied, UnavailableError
from refold.missing import no_topic
from refold.servers import with_cause
from refold.topology.failures import explain
from refold.topology.groupoffsets import GroupOffsets
from refold.topology.lasting import lasting
from refold.topology.outage import ASK_TIMEOUT_S

CLIENT_ID_PREFIX: Final = "refold"


@dataclass(frozen=True, slots=True)
class Owner:
    """A worker that owns a partition."""

    instance: str
    url: str


@dataclass(frozen=True, slots=True)
class Routes:
    """One look at the group. ``members`` counts all, also those without an address or partitions;
    ``workers`` are those with an address."""

    owners: Mapping[int, Owner]
    members: int
    workers: tuple[Owner, ...] = ()


def parse_client_id(client_id: str) -> Owner | None:
    """``refold|instance|url`` → :class:`Owner`; anything else is another program in the group."""
    prefix, _, rest = client_id.partition("|")
    instance, _, url = rest.partition("|")
    if prefix != CLIENT_ID_PREFIX or not instance or not url.startswith(("http://", "https://")):
        return None
    return Owner(instance, url.rstrip("/"))


class Directory:
    """Describes the inbox and the group through an AdminClient; what the group has committed is asked through
    a consumer besides, made when that is first asked: where no owner answers."""

    def __init__(self, config: dict[str, Any], group: str, inbox: str, timeout_s: float) -> None:
        self._admin = lasting(lambda: AdminClient(config))
        self._offsets = GroupOffsets(config, group)
        #: They answer one question at a time: so many threads wait for them.
        self._asking = asyncio.Lock()
        self._bootstrap = str(config.get("bootstrap.servers", "?"))
        self._group = group
        self._inbox = inbox
        self._timeout_s = timeout_s
        self.watch = Watch(self._bootstrap, lambda: self._admin.list_topics(inbox, timeout=ASK_TIMEOUT_S))

    async def partition_count(self, timeout_s: float) -> int:
        """Partitions of the inbox as the cluster has them now; raises when there is no such topic."""
        topic = self._inbox
        try:
            metadata = await asyncio.to_thread(self._admin.list_topics, topic, timeout_s)
        except KafkaException as error:
            found_out = explain(error, doing=f"looking for topic {topic!r}", bootstrap=self._bootstrap)
            raise await asyncio.to_thread(with_cause, found_out) from None
        found = metadata.topics[topic]
        if found.error is not None and found.error.code() == KafkaError.TOPIC_AUTHORIZATION_FAILED:
            raise PermissionDenied(
                f"Kafka refuses to let this principal see {topic!r}: grant DESCRIBE on it "
                "(`refold topology render acls` prints the rules of each role)"
            )
        if found.error is not None or not found.partitions:
            raise no_topic(topic)
        return len(found.partitions)

    async def look(self) -> Routes:
        """One group description; raises :class:`UnavailableError` when the cluster does not give it."""
        try:
            answer = self._admin.describe_consumer_groups([self._group], request_timeout=self._timeout_s)
            description = await asyncio.wrap_future(answer[self._group])
        except KafkaException as error:
            self.watch.doubt()
            unknown = UnavailableError(
                f"cannot describe consumer group {self._group!r} ({error.args[0].str()}): "
                "is the cluster reachable, and may this principal DESCRIBE the group?",
                retry_after_s=ROUTE_REFRESH_MIN_S,
            )
            raise self.watch.because(unknown) from None
        owners: dict[int, Owner] = {}
        workers: list[Owner] = []
        for member in description.members:
            owner = parse_client_id(member.client_id or "")
            if owner is None:
                continue
            workers.append(owner)
            for assigned in [] if member.assignment is None else member.assignment.topic_partitions:
                if assigned.topic == self._inbox:
                    owners[assigned.partition] = owner
        return Routes(owners, len(description.members), tuple(workers))

    async def committed(self, partition: int) -> int | None:
        """The group's committed next offset of an inbox partition, ``None`` when it has none, or when open
        transactions write it for longer than ``HELD_S_MAX``; raises :class:`UnavailableError` when the
        cluster does not say."""
        asked, until = [TopicPartition(self._inbox, partition)], time.monotonic() + self._timeout_s
        try:
            async with self._asking:
                held_until = min(until, time.monotonic() + HELD_S_MAX)
                found = None
                while found is None:
                    left = max(0.0, until - time.monotonic())
                    found = await asyncio.to_thread(self._offsets.stable, asked, left)
                    if time.monotonic() >= held_until:
                        break
        except KafkaException as error:
            self.watch.doubt()
            unread = UnavailableError(
                f"cannot read the offsets of group {self._group!r} ({error.args[0].str()}): is the cluster"
                " reachable, and may this principal DESCRIBE the group?"
            )
            raise self.watch.because(unread) from None
        return None if found is None or found[0].offset < 0 else int(found[0].offset)

    def close(self) -> None:
        """Disconnect from the coordinator, when the question under way is answered. Returns at once."""
        self._offsets.close()


class Router:
    """Cached routes; concurrent refreshes share one look."""

    def __init__(self, directory: Directory) -> None:
        self._directory = directory
        self._routes: Routes | None = None
        self._looked_at = float("-inf")
        self._looking: asyncio.Task[Routes] | None = None
        #: Why there are no routes; ``None`` once there are some.
        self.failure: str | None = "the cluster has not described the consumer group yet"

    async def owner(self, partition: int) -> Owner | None:
        """The owner as last seen, ``None`` when the group has none for this partition right now.

        That there is none is believed for ``ROUTE_REFRESH_MIN_S`` only: a client is often there before its
        workers, and until it has an owner every ruling costs a scan of topics.
        """
        if (owner := self.known(partition)) is not None:
            return owner
        routes = self._routes
        if routes is None or time.monotonic() - self._looked_at > ROUTE_REFRESH_MIN_S:
            routes = await self.refresh()
        return routes.owners.get(partition)

    def known(self, partition: int) -> Owner | None:
        """The owner as last seen, where that was not too long ago to be believed. Asks nobody."""
        routes = self._routes
        if routes is None or time.monotonic() - self._looked_at > ROUTE_AGE_MAX_S:
            return None
        return routes.owners.get(partition)

    async def close(self) -> None:
        """End a look that nobody waits for any more."""
        if self._looking is not None:
            self._looking.cancel()
            await asyncio.gather(self._looking, return_exceptions=True)

    @property
    def members(self) -> int:
        """Members of the group as last seen; 0 also before the first look."""
        return 0 if self._routes is None else self._routes.members

    async def refresh(self) -> Routes:
        """Look again, at most once per ``ROUTE_REFRESH_MIN_S``; waits for the interval if need be."""
        return await asyncio.shield(self.refresh_soon())

    def refresh_soon(self) -> asyncio.Task[Routes]:
        """As :meth:`refresh`, without waiting for it."""
        if self._looking is None:
            self._looking = asyncio.get_running_loop().create_task(self._look(), name="refold-routes")
            # Whoever asked may have been cancelled: the failure is nobody's then, and no warning's either.
            self._looking.add_done_callback(_look_at_failure)
        return self._looking

    def in_line(self, partition: int) -> list[Owner]:
        """Who may have a copy of a partition that it does not own, the likeliest first; as last seen."""
        if self._routes is None:
            return []
        owner = self._routes.owners.get(partition)
        workers = {worker.instance: worker for worker in self._routes.workers if worker != owner}
        return [workers[instance] for instance in ranking(partition, workers)]

    async def _look(self) -> Routes:
        try:
            pause = self._looked_at + ROUTE_REFRESH_MIN_S - time.monotonic()
            if pause > 0:
                await asyncio.sleep(pause)
            self._routes = await self._directory.look()
            self.failure = None
            return self._routes
        except UnavailableError as error:
            if self._routes is None:
                self.failure = str(error)
            raise
        finally:
            self._looked_at = time.monotonic()
            self._looking = None


def _look_at_failure(task: asyncio.Task[Routes]) -> None:
    if not task.cancelled():
        task.exception()
