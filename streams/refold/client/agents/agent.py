"""Declaring an agent: its name and version, its body, its tools; serving it, and starting runs of it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from typing import TYPE_CHECKING, Any, NoReturn, TypeAlias, TypeVar

from refold.client.agents.declared import check_heartbeat, check_lease, check_names
from refold.client.agents.limits import (
    CONCURRENCY_DEFAULT,
    CONCURRENCY_MAX,
    DRAIN_S_DEFAULT,
    LEASE_S_DEFAULT,
    RETRIES_MAX,
    STEP_HEARTBEAT_S_DEFAULT,
)
from refold.client.agents.starting import start
from refold.client.agents.worksource import ClientSource, process_name
from refold.client.generations.registry import Answer, Generators, Lookup, Mode
from refold.client.tools.declare import Tool
from refold.client.tools.declare import tool as declare_tool
from refold.client.tools.lease import LEASE_S_DEFAULT as TOOL_LEASE_S
from refold.errors import UsageError

if TYPE_CHECKING:
    from refold.client.agents.handle import RunHandle
    from refold.client.agents.holding import Outcome
    from refold.client.agents.run import Run
    from refold.client.client import Refold
    from refold.client.session import Session

Body: TypeAlias = "Callable[[Run], Coroutine[Any, Any, Any]]"
B = TypeVar("B", bound="Callable[[Any], Coroutine[Any, Any, Any]]")
A = TypeVar("A", bound=Answer)


class Agent:
    """``version``: of prompts, models and code together; a run is pinned to the version that took it first.
    ``accepts``: other versions whose runs this one can go on with. ``lease``: seconds after which another
    process goes on when this one is silent. ``step_heartbeat``: seconds without a sign of life after which a
    step counts as stuck."""

    def __init__(
        self,
        name: str,
        *,
        version: str,
        accepts: Sequence[str] = (),
        lease: float = LEASE_S_DEFAULT,
        step_heartbeat: float = STEP_HEARTBEAT_S_DEFAULT,
    ) -> None:
        check_names(name, version, accepts)
        self.name = name
        self.version = version
        self.accepts = tuple(accepts)
        self.lease_s = check_lease(lease)
        self.step_heartbeat_s = check_heartbeat(step_heartbeat)
        #: A dead process's calls can be looked after when its run is taken over.
        self.tool_lease_s = min(TOOL_LEASE_S, self.lease_s)
        self.tools: list[Tool] = []
        self._body: Body | None = None
        self._generators: list[Callable[[Generators], object]] = []

    def __repr__(self) -> str:
        return f"Agent({self.name!r}, version={self.version!r})"

    @property
    def lease_ms(self) -> int:
        return int(self.lease_s * 1000)

    @property
    def body(self) -> Body:
        """Raises UsageError where none is declared."""
        if self._body is None:
            raise UsageError(f"agent {self.name} has no body: decorate one with @agent.run")
        return self._body

    def tool(self, function: Callable[..., Any] | None = None, **options: Any) -> Any:
        """As ``refold.client.tools.tool``; the tool is the agent's (``run.tools``)."""

        def declare(declared: Callable[..., Any]) -> Tool:
            made = declared if isinstance(declared, Tool) else declare_tool(declared, **options)
            if any(known.name == made.name for known in self.tools):
                raise UsageError(f"agent {self.name} has two tools called {made.name!r}: give one name=…")
            self.tools.append(made)
            return made

        return declare if function is None else declare(function)

    def generator(
        self, name: str, *, lookup: Lookup | None = None, mode: Mode = "continue", overlap: bool = True
    ) -> Callable[[A], A]:
        """As ``rf.generator``: an answer function for ``run.model(name)``, known to every process that serves
        this agent."""

        def declare(answer: A) -> A:
            self._generators.append(
                lambda known: known.register(name, lookup=lookup, mode=mode, overlap=overlap)(answer)
            )
            return answer

        return declare

    def run(self, body: B) -> B:
        """Decorator: the body, ``async def body(run)``; what it returns is the run's result. It is executed
        from its start whenever a run is taken: what it does outside of steps is done again."""
        if self._body is not None:
            raise UsageError(f"agent {self.name} has a body already")
        self._body = body
        return body

    async def start(
        self, rf: Refold, session: Session | str, *, input: Any = None,  # noqa: A002 - the word of the SDK
        run_id: str | None = None, pin: str | None = None, title: str | None = None,
        retries: int = RETRIES_MAX,
    ) -> RunHandle:  # fmt: skip
        """Begin a run; returns when the fold has accepted it, whoever serves it. ``input``: any JSON value.
        ``run_id`` makes it idempotent (other content under the same id: Refused, ``conflict``). ``pin``: only
        this version may run it; default: the one that takes it first. Raises Refused, UsageError."""
        found = rf.session(session) if isinstance(session, str) else session
        return await start(
            self.name, found, input=input, run_id=run_id, pin=pin, title=title, retries=retries
        )

    async def serve(
        self, rf: Refold, *, concurrency: int = CONCURRENCY_DEFAULT, stop: asyncio.Event | None = None,
        max_seconds: float = DRAIN_S_DEFAULT,
    ) -> Outcome:  # fmt: skip
        """Take runs and execute them, ``concurrency`` at once, until ``stop`` is set (then drained, within
        ``max_seconds``) or cancelled (then given back at once). Any number of processes may serve it."""
        from refold.client.agents.serving import Server

        if not 1 <= concurrency <= CONCURRENCY_MAX:
            raise UsageError(f"concurrency={concurrency!r}: 1 to {CONCURRENCY_MAX}")
        _ = self.body
        for register in self._generators:
            register(rf.generators)
        server = Server(self, ClientSource(rf), process_name(rf), concurrency)
        return await server.serve(stop or asyncio.Event(), max_seconds)

    def main(self) -> NoReturn:
        """Serve it as this process, with its arguments ``--concurrency N --max-seconds S``: for ``if __name__
        == "__main__"``. As ``refold agent run module:agent``."""
        from refold.client.agents.process import main

        main(self)
