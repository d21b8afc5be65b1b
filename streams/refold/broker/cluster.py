"""Several nodes of one Kafka on this machine: for what only replication shows, such as a leader that moves.

::

    DIR/cluster.json      cluster id, ports of all nodes, heap, properties: written once, at the first start
    DIR/node-1 … node-N   one :class:`EmbeddedBroker` each, broker and controller in one

Ports are fixed at the first start, because every node is configured with all controllers' ports. A majority
must run for anything to work, so all are started side by side, and one alone is only started where that
majority is reached. Topics get three copies (or as many as there are nodes) and need two to acknowledge.

After a kill nothing is fenced in advance, unlike on a single node (``unclean.py``): the other nodes take over
the dead one's partitions when its session ends (9 s).
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self

from refold.broker import launch, ports
from refold.broker.embedded import TURN_WAIT_S_MAX, EmbeddedBroker
from refold.broker.locks import exclusive
from refold.broker.ports import LOOPBACK, Ports
from refold.broker.properties import Door, Node
from refold.broker.status import BrokerStatus, inspect
from refold.errors import StorageError, UsageError

#: Three nodes are 1.2 GB of heap at most; a node with a handful of topics uses a third of it.
CLUSTER_HEAP_MIB_DEFAULT: Final = 384

#: One node cannot lose one, two have no majority without both. Nine JVMs are more than a laptop should start.
NODES_MIN: Final = 3
NODES_MAX: Final = 9

VERSION: Final = 1


@dataclass(frozen=True, slots=True)
class Plan:
    """``cluster.json``."""

    cluster_id: str
    heap_mib: int
    properties: Mapping[str, str]
    ports: Mapping[int, Ports]

    def node(self, number: int) -> Node:
        voters = {other: chosen.controller for other, chosen in self.ports.items()}
        return Node(id=number, ports=self.ports[number], voters=voters, cluster_id=self.cluster_id)


def plan_file(directory: Path | str) -> Path:
    return Path(directory).absolute() / "cluster.json"


def is_cluster(directory: Path | str) -> bool:
    return plan_file(directory).exists()


class EmbeddedCluster:
    """The nodes in ``directory``, made with ``nodes`` of them at the first :meth:`start`. Not thread-safe;
    all methods block. Nodes die with this process unless ``detached``; those that ran already are adopted.

    Raises UsageError where the directory has another number of nodes, other properties, or a single broker.
    """

    def __init__(
        self,
        directory: Path | str,
        *,
        nodes: int | None = None,
        properties: Mapping[str, str] | None = None,
        heap_mib: int | None = None,
        detached: bool = False,
        doors: Mapping[int, Door] | None = None,
    ) -> None:
        self.directory = Path(directory).absolute()
        if nodes is not None and not NODES_MIN <= nodes <= NODES_MAX:
            raise UsageError(f"a cluster has {NODES_MIN} to {NODES_MAX} nodes; leave --nodes out for one.")
        if (self.directory / "state.json").exists():
            raise UsageError(
                f"a single broker lives in {self.directory}: choose another --dir for several nodes, or"
                f" delete it with `refold broker down --wipe --dir {self.directory}`."
            )
        self._nodes = nodes
        self._properties = dict(properties or {})
        self._heap_mib = heap_mib
        self._detached = detached
        #: By node, all of them or none; as long as this object lives.
        self._doors = dict(doors or {})
        self._plan = self._read()
        self._brokers: dict[int, EmbeddedBroker] = {}
        #: Started here, and so stopped by ``with``; those that ran before are left running.
        self._mine: set[int] = set()
        if self._plan is not None:
            self._adopt(self._plan)

    # -- what it is ---------------------------------------------------------------------------------

    @property
    def numbers(self) -> list[int]:
        return sorted(self._known().ports)

    @property
    def bootstrap(self) -> str:
        """All nodes, for clients. Raises UsageError before the first start."""
        return ",".join(f"{LOOPBACK}:{chosen.client}" for _, chosen in sorted(self._known().ports.items()))

    def node_directory(self, number: int) -> Path:
        return self.directory / f"node-{number}"

    def status(self) -> dict[int, BrokerStatus]:
        """By node; blocks up to a second for each that does not answer."""
        return {number: inspect(self.node_directory(number), number) for number in self.numbers}

    # -- lifecycle ----------------------------------------------------------------------------------

    def start(self) -> list[int]:
        """Start every node that does not run; their numbers. Returns when each answers and is known as live.

        Raises what :meth:`refold.broker.EmbeddedBroker.start` raises, for the first node in order.
        """
        with exclusive(
            self._locked_directory() / ".lock",
            wait_s_max=TURN_WAIT_S_MAX * 2,
            purpose="start of the cluster",
        ):
            self._plan = self._plan or self._read() or self._make()
            self._adopt(self._plan)
            for number in self.numbers:
                self._brokers[number] = self._brokers.get(number) or self._broker(number)
            started = self._each(self.numbers, lambda broker: broker.start())
        new = [number for number, was in started.items() if was]
        self._mine.update(new)
        return new

    def stop(self) -> list[int]:
        """Stop all side by side; the numbers of those that ran. The data stays."""
        stopped = self._each(self.numbers, lambda broker: broker.stop())
        return [number for number, was in stopped.items() if was]

    def start_node(self, number: int) -> bool:
        """Start one; False when it ran already. Raises UsageError where there would be no majority."""
        running = {other for other in self.numbers if inspect(self.node_directory(other), other).running}
        if len(running | {number}) * 2 <= len(self.numbers):
            raise UsageError(
                f"{len(running)} of {len(self.numbers)} nodes run, and with node {number} that is no"
                " majority: nothing would answer. `refold broker up` starts all of them."
            )
        return self._of(number).start()

    def stop_node(self, number: int) -> bool:
        """Stop one in order, its leaderships moved first; False when it did not run."""
        return self._of(number).stop()

    def kill_node(self, number: int) -> None:
        """SIGKILL one that was started or adopted here: its partitions move when its session ends."""
        self._of(number).kill()

    def wipe(self) -> None:
        """Delete all nodes' data and the plan. Raises UsageError while one runs."""
        for number in self.numbers:
            self._of(number).wipe()
        plan_file(self.directory).unlink(missing_ok=True)
        self._plan = None
        self._brokers.clear()

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._each(sorted(self._mine), lambda broker: broker.stop())
        self._mine.clear()

    # -- inside -------------------------------------------------------------------------------------

    def _locked_directory(self) -> Path:
        try:
            self.directory.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise StorageError(
                f"cannot use {self.directory} for the cluster: {error.strerror}. Choose a writable --dir."
            ) from error
        return self.directory

    def _make(self) -> Plan:
        taken: set[int] = set()
        chosen: dict[int, Ports] = {}
        for number in range(1, (self._nodes or NODES_MIN) + 1):
            pair = []
            for _ in range(2):
                port = ports.choose(taken=frozenset(taken))
                taken.add(port)
                pair.append(port)
            client, controller = pair
            chosen[number] = Ports(client=client, controller=controller, internal=client)
        plan = Plan(
            launch.new_cluster_id(), self._heap_mib or CLUSTER_HEAP_MIB_DEFAULT, self._properties, chosen
        )
        row = {
            "version": VERSION,
            "cluster_id": plan.cluster_id,
            "heap_mib": plan.heap_mib,
            "properties": dict(plan.properties),
            "nodes": {
                str(number): {"client": pair.client, "controller": pair.controller}
                for number, pair in chosen.items()
            },
        }
        partial = plan_file(self.directory).with_suffix(".partial")
        partial.write_text(json.dumps(row, indent=1) + "\n", encoding="utf-8")
        partial.replace(plan_file(self.directory))
        return plan

    def _read(self) -> Plan | None:
        path = plan_file(self.directory)
        try:
            row: dict[str, Any] = json.loads(path.read_text("utf-8"))
            chosen = {
                int(number): Ports(client=at["client"], controller=at["controller"], internal=at["client"])
                for number, at in row["nodes"].items()
            }
            return Plan(row["cluster_id"], row["heap_mib"], row["properties"], chosen)
        except FileNotFoundError:
            return None
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise StorageError(
                f"{path} is damaged. Restore it from a copy, or delete {self.directory} and start afresh."
            ) from error

    def _adopt(self, plan: Plan) -> None:
        """The plan stands; what was asked for must not contradict it."""
        if self._nodes is not None and self._nodes != len(plan.ports):
            raise UsageError(
                f"{self.directory} has {len(plan.ports)} nodes, not {self._nodes}: use another --dir."
            )
        if other := [name for name, value in self._properties.items() if plan.properties.get(name) != value]:
            raise UsageError(
                f"the cluster in {self.directory} was made without {', '.join(other)} as given: use another"
                " --dir, or delete it with `refold broker down --wipe`."
            )

    def _known(self) -> Plan:
        if self._plan is None:
            raise UsageError(f"no cluster was started in {self.directory}: `refold broker up --nodes 3`.")
        return self._plan

    def _of(self, number: int) -> EmbeddedBroker:
        if number not in self._known().ports:
            raise UsageError(f"there is no node {number} in {self.directory}: {self.numbers}.")
        if number not in self._brokers:
            self._brokers[number] = self._broker(number)
        return self._brokers[number]

    def _broker(self, number: int) -> EmbeddedBroker:
        plan = self._known()
        return EmbeddedBroker(
            self.node_directory(number),
            properties=plan.properties,
            heap_mib=self._heap_mib or plan.heap_mib,
            detached=self._detached,
            node=plan.node(number),
            door=self._doors.get(number),
        )

    def _each(self, numbers: list[int], work: Callable[[EmbeddedBroker], bool]) -> dict[int, bool]:
        """Side by side, each node its own thread: none is usable before a majority is."""
        for number in numbers:
            self._of(number)
        with ThreadPoolExecutor(max(1, len(numbers))) as pool:
            futures = {number: pool.submit(work, self._brokers[number]) for number in numbers}
        return {number: future.result() for number, future in futures.items()}
