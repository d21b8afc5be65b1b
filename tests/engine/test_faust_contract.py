"""What we override or rely on in Faust: fails when upstream's signatures or call order change.

Faust is pinned to one minor line; a version that fails here needs ``engine/transport.py``,
``engine/tables.py`` and ``agents/app.py`` read again beside it.
"""

from __future__ import annotations

import inspect
from typing import Any

import faust
import pytest
from faust.agents.agent import Agent
from faust.app.base import App, BootStrategy
from faust.streams import Stream
from faust.tables.manager import TableManager
from faust.transport.conductor import Conductor
from faust.transport.consumer import Consumer, Fetcher
from faust.transport.producer import Producer, ProducerBuffer
from faust.types.tuples import ConsumerMessage
from mode.utils.queues import FlowControlEvent

from refold.agents.app import RawSchema, RefoldApp
from refold.engine.tables import EngineTables
from refold.engine.transport import EngineConsumer, EngineProducer, EngineTransport


def parameters(function: Any) -> list[str]:
    return list(inspect.signature(function).parameters)


#: (upstream owner, method, its parameters). Everything we override, call or are called through.
SIGNATURES = [
    (Consumer, "_drain_messages", ["self", "fetcher"]),
    (Consumer, "on_partitions_assigned", ["self", "assigned", "generation_id"]),
    (Consumer, "ack", ["self", "message"]),
    (Consumer, "commit", ["self", "topics", "start_new_transaction"]),
    (Consumer, "wait_empty", ["self"]),
    (Consumer, "on_stop", ["self"]),
    (Consumer, "verify_event_path", ["self", "now", "tp"]),
    (Consumer, "resume_flow", ["self"]),
    (Fetcher, "_fetcher", ["self"]),
    (Producer, "send_soon", ["self", "fut"]),
    (Producer, "flush", ["self"]),
    (TableManager, "add", ["self", "table"]),
    (TableManager, "on_start", ["self"]),
    (TableManager, "on_stop", ["self"]),
    (TableManager, "on_partitions_revoked", ["self", "revoked"]),
    (TableManager, "on_rebalance", ["self", "assigned", "revoked", "newly_assigned", "generation_id"]),
    (TableManager, "wait_until_tables_registered", ["self"]),
    (Conductor, "on_partitions_assigned", ["self", "assigned"]),
    (App, "_on_partitions_assigned", ["self", "assigned", "generation_id"]),
    (App, "_on_agent_error", ["self", "agent", "exc"]),
    (App, "on_rebalance_start", ["self"]),
    (App, "on_rebalance_end", ["self"]),
    (FlowControlEvent, "resume", ["self"]),
]


@pytest.mark.parametrize(
    ("owner", "name", "expected"), SIGNATURES, ids=lambda value: getattr(value, "__name__", None)
)
def test_signatures_we_rely_on(owner: type, name: str, expected: list[str]) -> None:
    function = inspect.getattr_static(owner, name)
    # Service tasks are wrapped.
    function = getattr(function, "fun", function)
    assert parameters(function) == expected


def test_the_version_is_of_the_pinned_line() -> None:
    assert faust.__version__.startswith("0.15.")


@pytest.mark.parametrize("ours", [EngineConsumer, EngineProducer, EngineTables, RawSchema, RefoldApp])
def test_every_override_still_overrides_something(ours: type) -> None:
    """A method of ours that upstream no longer has would never be called."""
    (parent,) = ours.__bases__
    added = {
        EngineConsumer: {"engine", "_put", "_ownership", "_chunks"},
        RefoldApp: {"raw_schema", "engine", "start_engine"},
    }.get(ours, set())
    mine = {name for name in vars(ours) if not (name.startswith("__") or name in added)}
    inherited = {name for base in parent.__mro__ for name in vars(base)}
    abstract = set(getattr(Consumer, "__abstractmethods__", ()))
    unknown = mine - inherited - abstract - {"_abc_impl", "_abc_data", "logger"}
    # Methods drivers add beside the base class, called by its types.
    assert unknown <= {"seek_wait", "create_topic", "__annotations__"}, unknown


def test_nothing_abstract_is_left_open() -> None:
    for ours in (EngineConsumer, EngineProducer, EngineTables):
        assert not getattr(ours, "__abstractmethods__", None), ours
    assert (EngineTransport.Consumer, EngineTransport.Producer) == (EngineConsumer, EngineProducer)


def test_declaring_an_agent_still_does_what_ours_does() -> None:
    """`RefoldApp.agent` does these steps itself, and not the last one, which is for `autodiscover`."""
    source = inspect.getsource(App.agent)
    steps = source[source.index("self.agents[agent.name] = agent") :].split("return agent")[0]
    statements = [line.strip() for line in steps.splitlines() if not line.strip().startswith("#")]
    assert [line for line in statements if line] == [
        "self.agents[agent.name] = agent",
        "self.topics.beacon.add(agent)",
        "venusian.attach(agent, category=SCAN_AGENT)",
    ]


def test_the_start_order_is_the_one_we_read() -> None:
    """Producer before consumer before agents before conductor (which subscribes) before tables."""
    source = inspect.getsource(BootStrategy.server)
    order = ["kafka_producer", "kafka_consumer", "agents", "kafka_conductor", "tables"]
    places = [source.index(f"self.{name}()") for name in order]
    assert places == sorted(places)


def test_the_assignment_chain_updates_the_conductor_before_the_tables() -> None:
    source = inspect.getsource(App._on_partitions_assigned)
    steps = ["agents.on_rebalance", "topics.on_partitions_assigned", "tables.on_rebalance"]
    places = [source.index(f"self.{step}") for step in steps]
    assert places == sorted(places)
    assert "flow_control" not in source  # nothing that would clear the queues of kept partitions


def test_resuming_flow_control_still_clears_the_queues() -> None:
    """Why it is resumed once, before the first poll."""
    assert "self.clear()" in inspect.getsource(FlowControlEvent.resume)


def test_streams_still_drop_messages_of_another_generation() -> None:
    """Why a chunk carries the app's constant generation."""
    assert "generation_id != self.app.consumer_generation_id" in inspect.getsource(Stream._py_aiter)
    assert "generation_id" in parameters(ConsumerMessage.__init__)
    assert App.consumer_generation_id == 0


def test_agents_still_ack_whatever_happened_so_errors_must_end_the_process() -> None:
    source = inspect.getsource(Agent._execute_actor)
    assert "_on_error(self, exc)" in source
    assert "on_error=self._on_agent_error" in inspect.getsource(App.agent)


def test_the_conductor_waits_for_an_empty_producer_buffer_only() -> None:
    """It awaits ``producer.buffer.wait_until_ebb`` for every chunk; ours is always empty, so it returns at
    once."""
    assert "self.size > self.max_messages" in inspect.getsource(ProducerBuffer.wait_until_ebb)
