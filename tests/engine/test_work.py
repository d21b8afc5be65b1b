"""The work topic (rule N1): written with the event that changes what there is to do, taken back with it, and
withdrawn when the session is quarantined."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from engine.test_store import KEY, PARTITION, TENANT, Bench, event
from refold.core.envelope import Envelope
from refold.core.session import Session
from refold.core.work import work_items
from refold.engine import seal
from refold.engine import step as stepping
from refold.engine.store import Memory, Store
from refold.errors import InvariantViolation
from refold.wire.codec import encode
from refold.wire.envelope import encode_envelope
from refold.wire.work import decode_work, work_key

RUN = {"holder": "h", "epoch": 1}


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    opened = Store(tmp_path / "p0", Memory())
    yield opened
    opened.close()


def run(number: int, kind: str, run_id: str = "r1", **fields: Any) -> bytes:
    env = Envelope(
        event_id=f"r{number}",
        tenant=TENANT,
        session="s1",
        type=kind,
        event_time_ms=1,
        payload=encode(f"refold.event.{kind}", {"run_id": run_id, **fields} if run_id else fields),
    )
    return encode_envelope(env)


def started(number: int, run_id: str = "r1") -> bytes:
    return run(number, "RunStarted", run_id, agent="a")


def leased(number: int, **fields: Any) -> bytes:
    return run(number, "RunLeased", **{**RUN, "lease_ms": 60_000, "version": "1", **fields})


class Worked(Bench):
    def work(self) -> list[tuple[bytes | None, str | None]]:
        """(key, state or ``None`` for a tombstone), as the overlay being committed, or filled, has them."""
        overlay = self.inflight or self.current
        outputs = overlay.parts[PARTITION].outputs
        assert all(out.partition == PARTITION for out in outputs if out.topic == "t.work")
        return [
            (out.key, None if out.value is None else decode_work(out.value).state)
            for out in outputs
            if out.topic == "t.work"
        ]

    def session(self) -> Session:
        entry = self.sessions.cached(KEY)
        assert entry is not None
        session: Session = entry.session
        return session

    async def commit(self) -> None:
        assert await self.begin_commit() == []
        self.write()
        self.inflight = None


R1, R2 = work_key(KEY, "r1"), work_key(KEY, "r2")


def test_every_change_of_what_there_is_to_do_is_written_and_nothing_else(store: Store) -> None:
    bench = Worked(store)
    bench.fold(event(1), started(1), started(1), leased(2), event(2), leased(3), leased(4, holder="other"))
    assert bench.work() == [(R1, "ready"), (R1, "leased")]
    bench.fold(run(5, "RunReleased", **RUN), started(6, "r2"), leased(7, epoch=2))
    bench.fold(run(8, "RunCompleted", **{**RUN, "epoch": 2}), None)
    assert bench.work()[2:] == [(R1, "ready"), (R2, "ready"), (R1, "leased"), (R1, None), (R2, None)]


@pytest.mark.parametrize("raises", ["evolve", "decide"])
def test_a_fold_that_raises_withdraws_the_work_of_its_session(
    store: Store, monkeypatch: pytest.MonkeyPatch, raises: str
) -> None:
    """Goal: nobody takes a run that would be refused; after the release it is there again."""
    bench = Worked(store)
    bench.fold(started(1))
    with monkeypatch.context() as patched:
        real, failed = getattr(stepping, raises), False

        def broken(*given: Any) -> Any:
            nonlocal failed
            if not failed:
                failed = True
                raise ZeroDivisionError
            return real(*given)

        patched.setattr(stepping, raises, broken)
        (effects,) = bench.fold(event(2))
    assert isinstance(effects.quarantined, ZeroDivisionError)
    assert bench.session().status == "quarantined"
    assert bench.work() == [(R1, "ready"), (R1, None)]
    assert work_items(bench.session()) == {}
    bench.fold(run(3, "SessionReleased", ""), run(4, "SessionReleaseFinished", ""))
    assert bench.session().status == "open"
    assert bench.work()[2:] == [(R1, "ready")]


async def test_what_is_taken_back_at_the_seal_is_announced_to_nobody(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Goal: the topic says what the committed session says. Method: one run is committed, a second one and a
    lease of the first are in an overlay whose session cannot be encoded."""
    bench = Worked(store)
    bench.fold(started(1))
    assert bench.work() == [(R1, "ready")]
    await bench.commit()
    break_open_sessions(monkeypatch)
    bench.fold(started(2, "r2"), leased(3))
    assert bench.work() == [(R2, "ready"), (R1, "leased")]
    assert len(await bench.begin_commit()) == 1
    assert bench.work() == [(R1, None)]


async def test_a_deletion_before_what_is_taken_back_stands(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench = Worked(store)
    bench.fold(started(1))
    await bench.commit()
    break_open_sessions(monkeypatch)
    bench.fold(leased(2), None, started(3, "r2"))
    assert len(await bench.begin_commit()) == 1
    assert bench.work() == [(R1, "leased"), (R1, None)]


def break_open_sessions(monkeypatch: pytest.MonkeyPatch) -> None:
    real = seal.encode_snapshot

    def broken(session: Session) -> bytes:
        if session.status == "open":
            raise InvariantViolation("too large, or whatever")
        return real(session)

    monkeypatch.setattr(seal, "encode_snapshot", broken)
