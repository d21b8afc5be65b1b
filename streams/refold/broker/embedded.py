"""One broker in one directory: the object that tests, benches, the demo and the CLI hold.

::

    STOPPED --start--> RUNNING --suspend--> SUSPENDED      kill() from RUNNING or SUSPENDED leaves the
       ^                |   ^------resume-------|          directory as a power cut would; start() again
       '----stop--------'---------stop----------'          recovers it, on the same port.
"""

from __future__ import annotations

import atexit
import os
import signal
import subprocess
from collections.abc import Mapping
from contextlib import AbstractContextManager
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import Final, Self

from refold.broker import launch, ports, state, unclean
from refold.broker.diagnosis import explain
from refold.broker.jars import classpath
from refold.broker.java import HEAP_MIB_DEFAULT
from refold.broker.layout import Layout
from refold.broker.locks import exclusive
from refold.broker.ports import PortInUse, Ports
from refold.broker.process import STOP_S_MAX, Identity
from refold.broker.properties import NODE_ID, Door, Node, server_properties
from refold.broker.readiness import START_S_MAX, wait_until_usable
from refold.broker.state import State
from refold.broker.watchdog import Watchdog
from refold.errors import UnavailableError, UsageError

DEFAULT_DIRECTORY: Final = Path(".refold/broker")
#: Somebody else starts or stops this directory's broker: both ends of that, and the format before it.
TURN_WAIT_S_MAX: Final = START_S_MAX + STOP_S_MAX + launch.FORMAT_S_MAX
#: Starts with freshly chosen ports when a stranger takes one between our check and the broker's bind.
PORT_ATTEMPTS_MAX: Final = 3


class EmbeddedBroker:
    """A single-node Kafka (KRaft, combined) on 127.0.0.1; with ``node`` one of several (``cluster.py``); with
    ``door`` reachable by a proxy too.

    ``port`` None keeps the directory's previous port, or chooses a free one. ``properties`` are broker
    properties. ``jaas`` turns the client listener into SASL_PLAINTEXT with ACLs enforced (PLAIN, or
    SCRAM-SHA-256 when it names ScramLoginModule); create users and ACLs over :attr:`internal_bootstrap`.
    ``jvm_options`` replace the archive of loaded classes (``loaded.py`` makes it with them).

    Not thread-safe. All methods block. A broker started here dies with this process, SIGKILL included,
    unless ``detached``; one that already ran in the directory is adopted and left running by ``with``.
    """

    def __init__(
        self,
        directory: Path | str = DEFAULT_DIRECTORY,
        *,
        port: int | None = None,
        properties: Mapping[str, str] | None = None,
        jaas: str | None = None,
        heap_mib: int = HEAP_MIB_DEFAULT,
        detached: bool = False,
        node: Node | None = None,
        door: Door | None = None,
        jvm_options: tuple[str, ...] | None = None,
    ) -> None:
        self._node = node
        self._door = door
        self._jvm_options = jvm_options
        self._layout = Layout(Path(directory).absolute())
        self._port = port
        self._properties = {name: str(value) for name, value in (properties or {}).items()}
        self._jaas = jaas
        self._heap_mib = heap_mib
        self._detached = detached
        self._state: State | None = None
        self._child: subprocess.Popen[bytes] | None = None
        self._watchdog: Watchdog | None = None
        self._owner = os.getpid()

    # -- what it is ---------------------------------------------------------------------------------

    @property
    def bootstrap(self) -> str:
        """``host:port`` for clients. Raises UsageError before the first start."""
        return self._known().bootstrap

    @property
    def internal_bootstrap(self) -> str:
        """Without ``jaas`` the same address; with it a plaintext listener that is the super user."""
        return self._known().internal_bootstrap

    @property
    def pid(self) -> int:
        """Raises UnavailableError when it does not run."""
        return self._live().pid

    @property
    def running(self) -> bool:
        return self._state is not None and self._state.alive

    @property
    def directory(self) -> Path:
        return self._layout.directory

    @property
    def log_path(self) -> Path:
        return self._layout.log

    def cpu_seconds(self) -> float:
        """User plus system time of the process so far. Raises UnavailableError when it does not run."""
        process = self._live().identity.process()
        if process is None:
            raise self._gone()
        times = process.cpu_times()
        return float(times.user + times.system)

    # -- lifecycle ----------------------------------------------------------------------------------

    def start(self) -> bool:
        """Start and return when a metadata request works; false when it already ran here.

        Blocks about 1.5 s, 2.5 s the first time in a directory, 3 s after a kill, and for the download
        the first time on a machine; never longer than START_S_MAX once the JVM runs.

        Raises:
            PortInUse (an UnavailableError): the given port is taken.
            UsageError: a broker already runs here with another port or other properties.
            StorageError: directory not writable, disk full, data damaged.
            ConfigError: a property Kafka refuses, a jar with other bytes, ``refold[broker]`` missing.
            UnavailableError: jars cannot be fetched, or no answer in time.
        """
        with self._turn("start"):
            before = state.read(self._layout)
            if before is not None and before.alive:
                self._adopt(before)
                return False
            for attempt in range(1, PORT_ATTEMPTS_MAX + 1):
                try:
                    self._start(before)
                    return True
                except PortInUse:
                    if self._port is not None or self._node is not None or attempt == PORT_ATTEMPTS_MAX:
                        raise
                    before = None
        raise AssertionError("unreachable: the last attempt returns or raises")

    def stop(self) -> bool:
        """SIGTERM, wait STOP_S_MAX, then SIGKILL. False when nothing ran here. The data stays."""
        with self._turn("stop"):
            known = [s for s in (self._state, state.read(self._layout)) if s is not None]
            running = [s for s in known if s.alive]
            for live in running:  # two only if state.json was lost or replaced while ours ran
                live.identity.stop()
            if known:
                self._state = replace(known[-1], pid=0, created=0.0)
                state.write(self._layout, self._state)
            self._release()
            return bool(running)

    def kill(self) -> None:
        """SIGKILL: the directory stays as a crash leaves it. A no-op when it does not run."""
        if self._state is not None and self._state.alive:
            self._state.identity.kill()
        self._release()

    def restart(self) -> None:
        """Stop and start on the same port. Raises as :meth:`start`."""
        if self._port is None and self._state is not None:
            self._port = self._state.client_port
        self.stop()
        self.start()

    def suspend(self) -> None:
        """SIGSTOP: connections stay open and nothing answers, as in a long pause."""
        self._live().identity.signal(signal.SIGSTOP)

    def resume(self) -> None:
        """SIGCONT."""
        self._live().identity.signal(signal.SIGCONT)

    def wipe(self) -> None:
        """Delete data, logs and state. Raises UsageError while the broker runs."""
        with self._turn("wipe"):
            now = state.read(self._layout)
            if now is not None and now.alive:
                raise UsageError(f"the broker in {self.directory} still runs (pid {now.pid}): stop it first.")
            self._layout.wipe()
            self._state = None

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._child is not None or not self.running:
            self.stop()

    # -- inside -------------------------------------------------------------------------------------

    def _start(self, before: State | None) -> None:
        launch.prepare(self._layout)
        launch.require_unused(self._layout)
        listening = self._choose_ports(before.ports if before else None)
        known_id = launch.cluster_id(self._layout)
        settings = server_properties(
            data=self._layout.data,
            ports=listening,
            changes=self._properties,
            jaas=self._jaas,
            node=self._node,
            door=self._door,
        )
        jars = classpath()
        if known_id is None:
            new_id = None if self._node is None else self._node.cluster_id
            known_id = launch.format_data(self._layout, jars, self._heap_mib, settings, new_id)
        elif self._node is None and unclean.stopped_uncleanly(self._layout):
            unclean.fence_predecessor(self._layout, jars, self._heap_mib, settings)
        log_start = self._layout.log.stat().st_size
        child = launch.spawn(self._layout, jars, self._heap_mib, settings, self._jvm_options)
        try:
            identity = Identity.of(child.pid)
            self._state = State(
                pid=identity.pid,
                created=identity.created,
                client_port=listening.client,
                controller_port=listening.controller,
                internal_port=listening.internal,
                cluster_id=known_id,
                heap_mib=self._heap_mib,
                properties=self._properties,
            )
            state.write(self._layout, self._state)  # before the wait: a crash of ours must leave a trace
            self._own(child, identity)
            if not wait_until_usable(
                listening.internal, known_id, alive=lambda: child.poll() is None, node_id=self._node_id
            ):
                dead = child.poll() is not None
                what = "the broker stopped while starting" if dead else (
                    f"the broker did not answer within {START_S_MAX:.0f} s"
                )  # fmt: skip
                raise explain(self._layout, from_byte=log_start, what=what)
        except BaseException:  # KeyboardInterrupt too: never leave half a start behind
            child.kill()
            child.wait()
            self._release()
            raise

    @property
    def _node_id(self) -> int:
        return NODE_ID if self._node is None else self._node.id

    def _choose_ports(self, previous: Ports | None) -> Ports:
        if self._node is not None:
            # The others know this one by them.
            ports.require_free(self._node.ports.client)
            ports.require_free(self._node.ports.controller)
            return self._node.ports
        if self._port is not None:
            ports.require_free(self._port)
        client = self._port or ports.choose(previous.client if previous else None)
        controller = ports.choose(previous.controller if previous else None, taken=frozenset({client}))
        if self._jaas is None:
            return Ports(client=client, controller=controller, internal=client)
        taken = frozenset({client, controller})
        internal = ports.choose(previous.internal if previous else None, taken=taken)
        return Ports(client=client, controller=controller, internal=internal)

    def _adopt(self, running: State) -> None:
        where = f"a broker already runs in {self.directory} at {running.bootstrap} (pid {running.pid})"
        if self._port not in (None, running.client_port):
            raise UsageError(f"{where}, not on port {self._port}. Run `refold broker down` first.")
        if other := [n for n, v in self._properties.items() if running.properties.get(n) != v]:
            raise UsageError(f"{where} without {', '.join(other)} as given. Run `refold broker down` first.")
        alive = running.identity
        if not wait_until_usable(
            running.internal_port, running.cluster_id, alive=lambda: alive.alive, node_id=self._node_id
        ):
            raise UnavailableError(
                f"{where} but does not answer. It may be suspended or still recovering: see "
                f"{self.log_path}, or stop it with `refold broker down`."
            )
        self._state = running

    def _own(self, child: subprocess.Popen[bytes], identity: Identity) -> None:
        self._child = child
        if not self._detached:
            self._watchdog = Watchdog(identity.pid, identity.created)
            atexit.register(self._at_exit)

    def _release(self) -> None:
        """The process is gone (or, detached, somebody else's business): drop what tied it to us."""
        if self._watchdog is not None:
            self._watchdog.stand_down()
            self._watchdog = None
        if self._child is not None:
            self._child.poll()  # reap: a zombie would keep the pid
            self._child = None
        atexit.unregister(self._at_exit)

    def _at_exit(self) -> None:
        if os.getpid() == self._owner and self.running:  # not in a forked child
            self.stop()

    def _turn(self, purpose: str) -> AbstractContextManager[None]:
        return exclusive(self._layout.lock, wait_s_max=TURN_WAIT_S_MAX, purpose=f"{purpose} of the broker")

    def _known(self) -> State:
        if self._state is None:
            raise UsageError("this broker was not started yet: call start() or use it in a with statement.")
        return self._state

    def _live(self) -> State:
        known = self._known()
        if not known.alive:
            raise self._gone()
        return known

    def _gone(self) -> UnavailableError:
        return UnavailableError(f"the broker in {self.directory} does not run. Its log is {self.log_path}.")
