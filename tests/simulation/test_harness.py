"""Goal: the simulator stands where it says it stands: same methods as what it replaces, one thread at a
time."""

from __future__ import annotations

import inspect
import random
import time
from collections import Counter

import pytest

from refold.engine import points, store

from . import disk, seams, worker
from .broker import Broker
from .disk import Directory, Disk, Store
from .kernel import Hang, Kernel, Killed, Process
from .producer import Trouble
from .seeds import Seeds, child


def public(kind: type) -> dict[str, inspect.Signature]:
    return {
        name: inspect.signature(member)
        for name, member in vars(kind).items()
        if callable(member) and (not name.startswith("_") or name == "__init__")
    }


@pytest.mark.parametrize(
    ("real", "simulated"),
    [(store.Store, disk.Store), (store.Batch, disk.Batch)],
)
def test_the_simulated_disk_has_the_methods_of_the_real_one(real: type, simulated: type) -> None:
    """Goal: a method added to the store, or a parameter renamed, is missed here and not in a campaign."""
    wanted, found = public(real), public(simulated)
    for name, signature in wanted.items():
        assert name in found, f"{simulated.__name__} lacks {name}"
        assert list(found[name].parameters) == list(signature.parameters)


def test_the_simulated_points_have_the_methods_the_engine_calls() -> None:
    for name in ("begin", "reach", "during"):
        wanted = inspect.signature(getattr(points.Points, name))
        assert list(inspect.signature(getattr(worker.Points, name)).parameters) == list(wanted.parameters)


def test_the_seams_are_restored() -> None:
    """Goal: nothing of a simulation is left in the engine's modules. Method: install, look, leave by an
    exception."""
    kernel = Kernel(random.Random(1))
    broker = Broker(kernel, ("in",), 1, "g", random.Random(1))
    before = [
        (module, name, getattr(module, name))
        for module, name, _ in (
            *seams.replacements(kernel, broker, Trouble(), Counter()),
            *seams.disks(),
        )
    ]
    with pytest.raises(ZeroDivisionError), seams.installed(kernel, broker, Trouble(), Counter()):
        assert all(getattr(module, name) is not value for module, name, value in before)
        raise ZeroDivisionError
    assert all(getattr(module, name) is value for module, name, value in before)
    assert time.monotonic() > 0


def test_seeds_are_independent_and_stable() -> None:
    """Goal: a draw more by one consumer moves no other; the numbers are the same in every process and
    version."""
    first, second = Seeds.derive(5), Seeds.derive(5)
    first.workload.random()
    assert first.schedule.random() == second.schedule.random()
    assert child(5, "workload").randrange(10**6) == second.workload.randrange(10**6)
    assert [child(1, name).randrange(10**6) for name in ("workload", "faults")] == [312294, 545369]


def test_a_stopped_process_stands_still_and_a_killed_one_unwinds_without_effect() -> None:
    kernel = Kernel(random.Random(3))
    process, other = Process("a"), Process("b")
    done: list[str] = []

    def body() -> None:
        try:
            for number in range(100):
                kernel.sleep(0.001)
                done.append(f"a{number}")
        finally:
            kernel.alive()
            done.append("cleaned up")

    kernel.spawn(process, "body", body)
    kernel.spawn(other, "body", lambda: kernel.sleep(0.5))
    kernel.wait(lambda: len(done) == 5)
    kernel.stop(process)
    kernel.wait(None, 100_000)
    assert len(done) == 5
    kernel.resume(process)
    kernel.wait(lambda: len(done) == 8)
    kernel.kill(process)
    assert len(done) == 8
    kernel.shutdown()
    assert kernel.errors == []
    with pytest.raises(Hang):
        kernel.wait(lambda: False)


def test_a_thread_that_ends_by_an_exception_is_told() -> None:
    kernel = Kernel(random.Random(3))

    def body() -> None:
        kernel.pause()
        raise ValueError("mine")

    kernel.spawn(Process("a"), "body", body)
    kernel.wait(lambda: bool(kernel.errors), 10_000)
    ((fiber, error),) = kernel.errors
    assert (fiber.name, str(error)) == ("body", "mine")


def rows_after_crash(seed: int) -> dict[bytes, bytes]:
    """Six batches, the first one flushed, then a crash."""
    kernel = Kernel(random.Random(1))
    machine = Disk("m", kernel, random.Random(seed))

    def body() -> None:
        opened = Store(Directory(machine, "d"), None)
        for number in range(6):
            batch = disk.Batch()
            batch.put_state(b"k%d" % number, b"v")
            batch.put_state(b"last", b"%d" % number)
            opened.write(batch)
            if number == 0:
                opened.flush()

    kernel.spawn(Process("p"), "body", body)
    kernel.wait(lambda: not kernel.fibers)
    machine.crash()
    return machine.databases["d"].live


def test_a_crash_keeps_a_prefix_of_whole_batches() -> None:
    """Goal: what RocksDB without a log leaves. Method: many crashes of the same batches."""
    kept: set[int] = set()
    for seed in range(60):
        rows = rows_after_crash(seed)
        whole = int(rows[b"slast"])
        assert set(rows) == {b"slast", *(b"sk%d" % number for number in range(whole + 1))}
        kept.add(whole)
    assert kept == {0, 1, 2, 3, 4, 5}


def test_a_directory_has_one_live_owner() -> None:
    kernel = Kernel(random.Random(1))
    machine = Disk("m", kernel, random.Random(1))
    seen: list[str] = []

    def body() -> None:
        first = Store(Directory(machine, "d"), None)
        try:
            Store(Directory(machine, "d"), None)
        except Exception as error:
            seen.append(str(error))
        first.close()
        Store(Directory(machine, "d"), None).close()

    kernel.spawn(Process("p"), "body", body)
    kernel.wait(lambda: not kernel.fibers)
    assert kernel.errors == []
    assert "locked" in seen[0]


def test_killed_is_not_swallowed_by_handlers_of_exceptions() -> None:
    assert not issubclass(Killed, Exception)
