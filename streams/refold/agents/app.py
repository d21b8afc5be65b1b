"""The Faust app of one worker: our transport, our table manager, raw bytes through, one agent per input
topic.

What would be outside the transaction is off or raises when it is declared: web server (it binds every
interface), leader topic, topic declaration, tables, ``take``-style buffering over chunks, sends.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import faust

from refold.agents import batches, inbox
from refold.engine import transport
from refold.engine.engine import Engine
from refold.engine.tables import EngineTables
from refold.errors import UsageError

#: Chunks in the agent's queue. The engine bounds bytes and records between poll and fold; this only must not
#: be the tighter bound: 8 000 records in chunks of one are 8 000 chunks.
STREAM_BUFFER_CHUNKS_MAX = 8_192


class RawSchema(faust.Schema):
    """Chunks through, untouched."""

    def loads_key(self, app: Any, message: Any, *, loads: Any = None, serializer: Any = None) -> Any:
        return message.key

    def loads_value(self, app: Any, message: Any, *, loads: Any = None, serializer: Any = None) -> Any:
        return message.value


class RefoldApp(faust.App):
    engine: Engine
    start_engine: Callable[[], None]

    #: "Starting..." and the like, logged under this module's name; the worker has events of its own for it.
    mundane_level = "debug"

    def raw_schema(self) -> RawSchema:
        return RawSchema()

    def task(self, fun: Any = None, *, on_leader: bool = False, traced: bool = True) -> Any:
        if on_leader:
            raise UsageError("on_leader tasks need Faust's leader topic, which is outside refold's protocol")
        return super().task(fun, on_leader=on_leader, traced=traced)

    def agent(self, channel: Any = None, *, concurrency: int = 1, **kwargs: Any) -> Any:
        if concurrency != 1:
            raise UsageError(
                "agents run with concurrency=1: a partition is folded in order. Use more processes"
            )

        def made(fun: Any) -> Any:
            agent = self.conf.Agent(
                fun, app=self, channel=channel, on_error=self._on_agent_error, help=fun.__doc__, **kwargs
            )
            self.agents[agent.name] = agent
            self.topics.beacon.add(agent)
            return agent

        # What Faust's own does, but for noting the place in the source for `autodiscover`, which is off: to
        # find it, `inspect` walks every module that is imported (30 ms of a start, measured).
        return made

    def on_init_dependencies(self) -> Any:
        """A sensor that notes nothing instead of Faust's monitor, which keeps books for every chunk that
        nobody reads (a tenth of the main thread's time at 1 000 events/s). The worker has metrics of its
        own; without any sensor, Faust warns at each rebalance."""
        dependencies = super().on_init_dependencies()
        self.sensors.remove(self.monitor)
        self.sensors.add(faust.Sensor())
        return dependencies

    async def _on_agent_error(self, agent: Any, exc: BaseException) -> None:
        """Faust would ack the chunk and start the agent again; its records would be skipped."""
        self.engine.failed(exc)

    def Table(self, name: str, **kwargs: Any) -> Any:  # noqa: N802 - Faust's name
        raise UsageError(
            f"Faust table {name!r} would be outside refold's transaction; keep state in the session"
        )

    GlobalTable = SetTable = SetGlobalTable = Table


def build(engine: Engine, start_engine: Callable[[], None]) -> RefoldApp:
    """The app, not started. ``start_engine`` is called once, when Faust has subscribed."""
    transport.register()
    config = engine.config
    app = RefoldApp(
        config.prefix,
        broker=f"{transport.SCHEME}://{config.bootstrap.split(',')[0].rpartition('://')[2]}",
        datadir=str(config.store_dir / "faust"),
        TableManager=EngineTables,
        web_enabled=False,
        topic_disable_leader=True,
        topic_allow_declare=False,
        reply_create_topic=False,
        stream_buffer_maxsize=STREAM_BUFFER_CHUNKS_MAX,
        stream_wait_empty=False,
        store="memory://",
        autodiscover=False,
    )
    app.engine = engine
    app.start_engine = start_engine
    inbox.attach(app)
    batches.attach(app)
    app.finalize()
    return app
