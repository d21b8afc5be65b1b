"""The parts of `refold verify faults` and of `chaos --broker-restarts` that need no broker."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path

import pytest

from refold.broker.ports import LOOPBACK, Ports, choose
from refold.broker.properties import Door, server_properties
from refold.cli.main import run
from refold.errors import UsageError
from refold.ops.faults.catalog import SCENARIOS
from refold.ops.faults.proxy import WRITE_TXN_MARKERS, Proxy
from refold.ops.faults.run import Played, chosen, play
from refold.ops.faults.scenario import Scene, hits, told
from refold.ops.fleet import WorkerProcess
from refold.ops.verify.judge import Verdict
from refold.ops.verify.nodes import CommandNodes
from refold.ops.verify.plan import ChaosPlan, NodeEnd
from refold.ops.verify.readback import Record
from refold.ops.verify.stage import Compared, longest_pause_ms

WAIT_S_MAX = 90.0
PLAN = ChaosPlan(seed=1, seconds=0)


def until(condition: Callable[[], object]) -> None:
    end = time.monotonic() + WAIT_S_MAX
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.01)


def frame(api_key: int, body: bytes) -> bytes:
    content = api_key.to_bytes(2) + bytes(6) + body
    return len(content).to_bytes(4) + content


class Echo:
    """A server that answers every byte with itself, and remembers what came."""

    def __init__(self) -> None:
        self._listening = socket.create_server((LOOPBACK, 0))
        self.port = int(self._listening.getsockname()[1])
        self.came = b""
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        while True:
            try:
                connection, _ = self._listening.accept()
            except OSError:
                return
            threading.Thread(target=self._echo, args=(connection,), daemon=True).start()

    def _echo(self, connection: socket.socket) -> None:
        with connection:
            while data := connection.recv(65536):
                self.came += data
                connection.sendall(data)

    def close(self) -> None:
        self._listening.close()


@pytest.fixture
def echo() -> Iterator[Echo]:
    server = Echo()
    yield server
    server.close()


@pytest.fixture
def proxy(echo: Echo) -> Iterator[Proxy]:
    one = Proxy(echo.port)
    one.start()
    yield one
    one.close()


@pytest.fixture
def client(proxy: Proxy) -> Iterator[socket.socket]:
    with socket.create_connection((LOOPBACK, proxy.port), timeout=WAIT_S_MAX) as connection:
        yield connection


def received(connection: socket.socket, size: int) -> bytes:
    data = b""
    while len(data) < size:
        data += connection.recv(size - len(data))
    return data


def test_a_cut_holds_everything_back_and_loses_nothing(
    proxy: Proxy, echo: Echo, client: socket.socket
) -> None:
    """Goal: what was under way arrives when the network heals, also on connections made meanwhile."""
    first, second, third = (frame(1, bytes([n]) * 5) for n in (1, 2, 3))
    client.sendall(first)
    assert received(client, len(first)) == first
    proxy.cut()
    client.sendall(second)
    until(lambda: proxy.seen.requests_held == 1)
    with socket.create_connection((LOOPBACK, proxy.port), timeout=WAIT_S_MAX) as late:
        late.sendall(third)
        until(lambda: proxy.seen.connections == 2)
        assert echo.came == first, "nothing passed"
        proxy.heal()
        assert received(client, len(second)) == second
        assert received(late, len(third)) == third


def test_answers_alone_can_be_held(proxy: Proxy, echo: Echo, client: socket.socket) -> None:
    """Goal: the request is carried out, its sender does not learn it."""
    one = frame(1, b"x")
    proxy.cut(requests=False)
    client.sendall(one)
    until(lambda: proxy.seen.answers_held == 1)
    assert echo.came == one
    proxy.heal()
    assert received(client, len(one)) == one


def test_one_kind_of_request_about_one_topic_is_held(proxy: Proxy, echo: Echo, client: socket.socket) -> None:
    """Goal: markers of the state topic wait, other requests and other topics' markers pass."""
    passing = (frame(1, b"app.state"), frame(WRITE_TXN_MARKERS, b"app.journal"))
    held = frame(WRITE_TXN_MARKERS, b"app.state")
    proxy.hold(WRITE_TXN_MARKERS, b"app.state")
    for one in passing:
        client.sendall(one)
        assert received(client, len(one)) == one
    client.sendall(held)
    until(lambda: proxy.seen.frames == [held])
    assert echo.came == b"".join(passing)
    proxy.heal()
    assert received(client, len(held)) == held


def test_a_delay_is_no_limit_of_the_rate(proxy: Proxy, client: socket.socket) -> None:
    """Goal: ten requests sent at once take one delay each way, not ten."""
    one, delay_s = frame(1, b"x"), 0.2
    proxy.delay(delay_s)
    began = time.monotonic()
    client.sendall(one * 10)
    assert received(client, len(one) * 10) == one * 10
    assert time.monotonic() - began >= 2 * delay_s
    assert proxy.seen.delayed >= 10
    proxy.heal()


def test_a_target_that_is_away_closes_the_connection() -> None:
    gone = Proxy(choose(None))
    gone.start()
    with socket.create_connection((LOOPBACK, gone.port), timeout=WAIT_S_MAX) as connection:
        assert connection.recv(1) == b""
    gone.close()


def test_a_door_is_advertised_at_the_proxys_port(tmp_path: Path) -> None:
    """Goal: who comes by the door is told the proxy's address; without one nothing changes."""
    ports = Ports(client=1, controller=2, internal=1)
    plain = server_properties(data=tmp_path, ports=ports, changes={}, jaas=None)
    assert "DOOR" not in str(plain)
    made = server_properties(
        data=tmp_path, ports=ports, changes={}, jaas=None, door=Door(port=7, advertised=8)
    )
    assert "DOOR://127.0.0.1:7" in made["listeners"]
    assert "DOOR://127.0.0.1:8" in made["advertised.listeners"]
    assert made["inter.broker.listener.name"] == "CLIENT"
    between = Door(port=7, advertised=8, between=True)
    made = server_properties(data=tmp_path, ports=ports, changes={}, jaas=None, door=between)
    assert made["inter.broker.listener.name"] == "DOOR"


def test_scenarios_have_names_of_their_own_and_unknown_ones_are_refused() -> None:
    names = [scenario.name for scenario in SCENARIOS]
    assert len(set(names)) == len(names)
    assert [scenario.name for scenario in chosen([])] == names
    assert [scenario.name for scenario in chosen(["kill-in-drain"])] == ["kill-in-drain"]
    with pytest.raises(UsageError, match="kill-in-drain"):
        chosen(["nothing"])
    with pytest.raises(UsageError, match="skip-dedup"):
        play([], ChaosPlan(seed=1, seconds=0, sabotage="nothing"), None, print)


def test_a_fault_that_did_not_strike_is_not_clean(tmp_path: Path) -> None:
    """Goal: no vacuous pass: nothing compared, something different, and nothing struck all fail; a skip does
    not."""
    played = Played(SCENARIOS[0])
    assert (played.status, played.clean) == ("different", False)
    scene = played.scene = Scene(PLAN, print, tmp_path, keep=False)
    assert not played.clean
    scene.compared = Compared(Verdict(), events=1, aborted_commits=0, pause_ms_max=1)
    assert (played.status, played.clean) == ("clean", True)
    scene.gate(True, "this")
    assert played.clean
    scene.gate(False, "that")
    assert (played.status, played.clean) == ("not shown", False)
    scene.compared.verdict.differ("a session")
    assert (played.status, played.clean) == ("different", False)
    assert played.as_json()["mismatches"] == 1
    assert Played(SCENARIOS[0], skipped="why").clean


def test_what_a_worker_wrote_is_read_from_where_one_stopped(tmp_path: Path) -> None:
    worker = WorkerProcess("w0", tmp_path, {}, detached=True)
    worker.log_path.write_text('{"event": "a", "x": 1}\nno json\n{"event": "b"}\n')
    assert told(worker, "a", x=1)
    assert told(worker, "a", x=2) is None
    assert told(worker, "a", since=worker.log_path.stat().st_size) is None
    assert hits(worker) == []
    worker.point_path.with_name("w0.point.hit").write_text('{"point": "after_mark", "events": 0}\nbroken')
    assert hits(worker) == ["after_mark"]


def test_each_three_restarts_hold_every_kind_and_a_seed_repeats_them() -> None:
    ends = list(islice(ChaosPlan(seed=5, seconds=60).node_ends(), 9))
    assert ends == list(islice(ChaosPlan(seed=5, seconds=60).node_ends(), 9))
    for first in (0, 3, 6):
        assert {how for _, how in ends[first : first + 3]} == set(NodeEnd)


def test_a_users_brokers_are_not_restarted_without_being_told_how(capsys: pytest.CaptureFixture[str]) -> None:
    """Goal: refused with the way out, before anything is contacted."""
    chaos = ["verify", "chaos", "--bootstrap", "127.0.0.1:1"]
    assert run([*chaos, "--broker-restarts"]) == UsageError.exit_code
    assert "--broker-restart-command" in capsys.readouterr().err
    assert run([*chaos, "--broker-restart-command", "x {node}"]) == UsageError.exit_code
    assert "give both" in capsys.readouterr().err
    with pytest.raises(UsageError, match="node"):
        CommandNodes("restart everything", None)


def test_the_longest_pause_is_that_of_one_event() -> None:
    """Goal: from the inbox to the journal by the broker's clock; records without an event count nothing."""
    came = Record(0, 3, b"t/s", b"", (), 1_000)
    assert longest_pause_ms({0: [came]}, {0: []}) is None
