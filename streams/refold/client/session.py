"""One session: writes, reads, tools and generations together."""

from __future__ import annotations

from typing import TYPE_CHECKING

from refold.client.children import SessionChildren
from refold.client.connection import Connection
from refold.client.facts import Facts
from refold.client.generations.session_generations import SessionGenerations
from refold.client.operations.session_operations import SessionOperations
from refold.client.publishing import Publisher
from refold.client.reads import SessionReads
from refold.client.run_writes import RunWrites
from refold.client.tools.session_tools import SessionTools
from refold.client.usage.usage import Usage
from refold.core.slots import make_key

if TYPE_CHECKING:
    from refold.client.generations.service import Generations


class Session(RunWrites, SessionReads, SessionChildren, SessionOperations, SessionTools, SessionGenerations):
    """Made by :meth:`refold.client.Refold.session`. Any number of these may exist for one session; those of
    one client share its send queue and what it saw accepted."""

    def __init__(
        self, connection: Connection, tenant: str, session: str, generations: Generations | None = None
    ) -> None:
        self.tenant = tenant
        self.id = session
        self.key = make_key(tenant, session)
        self._connection = connection
        self._generations = generations
        self._publisher = Publisher(connection, tenant, session, self.key)

    def __repr__(self) -> str:
        return f"Session({self.tenant}/{self.id})"

    def usage(self, subject: str, model: str) -> Usage:
        """As ``rf.usage``; what is recorded goes to this session."""
        return Usage(self, subject, model)

    def sibling(self, session: str) -> Session:
        return Session(self._connection, self.tenant, session, self._generations)

    @property
    def facts(self) -> Facts:
        """Named facts, read and written one by one."""
        return Facts(self)

    @property
    def publisher(self) -> Publisher:
        """What appends its events."""
        return self._publisher

    @property
    def last_seq(self) -> int:
        """The highest seq this client saw accepted, ends of followed generations included; reads wait for it
        (read-your-writes)."""
        return self._connection.memory(self.key).last_seq

    @property
    def partition(self) -> int:
        return self._connection.partition_of(self.key)
