"""Parts of reducers under chaos: what is right passes, and each planted fault is found by its witness."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random
from typing import Any

import pytest

from refold.core import reducers as pure
from refold.core.envelope import Envelope
from refold.core.reducers import Reducer, Registry
from refold.core.session import Session
from refold.errors import ConfigError, UsageError
from refold.ops.refolding import Refolder
from refold.ops.verify.judge import Verdict
from refold.ops.verify.oracle import World, home, predict
from refold.ops.verify.parts import Parts, encode_sample, judge_parts, load_module, sampler
from refold.ops.verify.plan import ChaosPlan
from refold.ops.verify.readback import Record
from refold.ops.verify.traffic import Traffic
from refold.reducers import declared
from refold.reducers.event import Event, viewer
from refold.wire.envelope import decode_envelope, encode_envelope
from refold.wire.journal import journal_value
from refold.wire.snapshot import decode_session, encode_snapshot

PARTITIONS = 4
KEY = b"t/s"
HOME = home(KEY, PARTITIONS)
Topic = dict[int, list[Record]]

#: The journal's times: 1 s apart.
BEGIN_MS = 1_800_000_000_000


def total(state: Any, happened: Event) -> Any:
    return {"sum": state["sum"] + happened.payload["n"], "at": happened.time_ms}


def registry(function: Callable[[Any, Event], Any] = total, version: int = 1, upcast: Any = None) -> Registry:
    one = Reducer("total", version, frozenset({"Counted"}), b'{"at":0,"sum":0}', function, upcast or {})
    made = Registry([one], viewer({}))
    pure.install(made)
    return made


@pytest.fixture(autouse=True)
def forgotten() -> Iterator[None]:
    yield
    pure.install(None)
    for name in [name for name in declared() if name.startswith("chaos-")]:
        declared().pop(name)  # type: ignore[attr-defined]


def topic(*values: bytes) -> Topic:
    """Values on the session's own partition, in order."""
    made: Topic = {partition: [] for partition in range(PARTITIONS)}
    made[HOME] = [Record(HOME, n, KEY, value, (), 0) for n, value in enumerate(values)]
    return made


def counted(event_id: str, n: int, kind: str = "Counted") -> bytes:
    payload = json.dumps({"n": n}).encode()
    return encode_envelope(Envelope(event_id, "t", "s", kind, event_time_ms=1, payload=payload))


class Case:
    """An inbox, the journal and state that came of it, and what the oracle makes of the inbox."""

    def __init__(self, *values: bytes) -> None:
        self.values = values
        self.world: World = predict(topic(*values), frozenset({"Counted"}))
        self.journal: Topic = topic(
            *(
                journal_value(n + 1, BEGIN_MS + n * 1000, HOME, n, decode_envelope(value))
                for n, value in enumerate(values)
            )
        )
        self.state = self.fold()

    def fold(self) -> Topic:
        refolder = Refolder()
        for record in self.journal[HOME]:
            refolder.feed(KEY, record.value or b"")
        return topic(refolder.encoded(KEY) or b"")

    def stored(self, change: Callable[[Session], None]) -> None:
        session = decode_session(self.state[HOME][0].value or b"")
        change(session)
        session.enc_tail = None
        self.state = topic(encode_snapshot(session))

    def judged(self, bump_ms: int | None = None) -> tuple[Verdict, Parts]:
        verdict = Verdict()
        assert pure.active is not None
        return verdict, judge_parts(verdict, pure.active, self.world, self.journal, self.state, bump_ms)


VALUES = (counted("a", 1), counted("b", 2, "Other"), counted("c", 4))


def test_what_is_right_passes() -> None:
    registry()
    verdict, parts = Case(*VALUES).judged()
    assert verdict.differences == []
    assert parts == Parts(compared=1)


def test_a_part_of_both_versions_is_counted_and_one_of_before_is_compared_upcast() -> None:
    registry()
    case = Case(*VALUES)
    registry(
        lambda s, e: {"total": s["total"] + e.payload["n"], "at": e.time_ms},
        version=2,
        upcast={1: lambda s: {"total": s["sum"], "at": s["at"]}},
    )
    pure.active.by_name["total"].initial = b'{"at":0,"total":0}'  # type: ignore[union-attr]
    verdict, parts = case.judged(bump_ms=BEGIN_MS + 1_500)
    assert verdict.differences == []
    assert parts == Parts(compared=1, upcast=1)
    assert case.judged(bump_ms=BEGIN_MS - 1)[1].upcast == 0
    assert case.judged(bump_ms=BEGIN_MS + 9_000)[1].upcast == 0


SIX = b'{"at":1800000002000,"sum":6}'

FAULTS: dict[str, Callable[[Session], None]] = {
    "another state": lambda session: setattr(
        session.reduced["total"], "state", b'{"at":1800000002000,"sum":6}'
    ),
    "another seq": lambda session: setattr(session.reduced["total"], "seq", 2),
    "quarantined": lambda session: setattr(session.reduced["total"], "status", "quarantined"),
    "no part": lambda session: session.reduced.clear(),
    "another version": lambda session: setattr(session.reduced["total"], "version", 2),
}


@pytest.mark.parametrize("what", FAULTS)
def test_a_wrong_part_is_found_by_both(what: str) -> None:
    registry()
    case = Case(*VALUES)
    case.stored(FAULTS[what])
    verdict, _ = case.judged()
    assert verdict.mismatches == 2, verdict.differences


def test_a_fold_that_takes_an_event_twice_is_found_by_the_oracle_alone() -> None:
    """Goal: what is wrong in the journal too, and so in the fold of it, still differs from the plain loop."""
    registry()
    case = Case(*VALUES)
    again = journal_value(4, BEGIN_MS + 3_000, HOME, 3, decode_envelope(counted("d", 4)))
    case.journal = topic(*(record.value or b"" for record in case.journal[HOME]), again)
    case.state = case.fold()
    verdict, _ = case.judged()
    assert ["another state" in text for text in verdict.differences] == [True]


def test_another_part_of_the_state_that_differs_is_found_by_the_fold_alone() -> None:
    registry()
    case = Case(*VALUES)
    case.stored(lambda session: setattr(session, "parked", 1))
    verdict, _ = case.judged()
    assert ["not the fold of its journal" in text for text in verdict.differences] == [True]


MODULE = """
from refold.reducers import reducer

@reducer("chaos-{name}", types=["Counted"])
def fold(state, event):
    return state
"""


SAMPLE = """
def sample(chance):
    return "Counted", {"n": chance.randrange(9)}
"""


@pytest.fixture
def modules(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    yield tmp_path
    for name in ("chaos_whole", "chaos_mute", "chaos_empty", "chaos_broken"):
        sys.modules.pop(name, None)


def test_a_module_that_cannot_be_run_is_refused_by_name(modules: Path) -> None:
    (modules / "chaos_mute.py").write_text(MODULE.format(name="mute"))
    (modules / "chaos_broken.py").write_text("raise ValueError('no')")
    with pytest.raises(ConfigError, match="ModuleNotFoundError"):
        load_module("chaos_absent")
    with pytest.raises(ConfigError, match="ValueError"):
        load_module("chaos_broken")
    with pytest.raises(UsageError, match="sample"):
        load_module("chaos_mute")


def test_traffic_has_events_of_the_module_and_none_without_one(modules: Path) -> None:
    """Goal: a fifth of what is sent. Method: what would be sent is kept instead."""
    (modules / "chaos_whole.py").write_text(
        MODULE.format(name="whole")
        + "\ndef sample(chance):\n    return 'Counted', {'n': chance.randrange(9)}\n"
    )
    load_module("chaos_whole")
    assert encode_sample(sampler("chaos_whole")(Random(1))) == ("Counted", b'{"n": 2}')
    sent: dict[str | None, list[tuple[str, str]]] = {}
    for module in (None, "chaos_whole"):
        plan = ChaosPlan(seed=7, seconds=5, reducers=module)
        traffic = Traffic(plan, "t.inbox", {"bootstrap.servers": "127.0.0.1:1", "log_level": 0})
        found = sent[module] = []

        def keep(_voice: Any, _key: Any, value: bytes, found: list[tuple[str, str]] = found) -> None:
            try:
                env = decode_envelope(value)
            except Exception:
                return
            found.append((env.type, env.session))

        traffic._send = keep  # type: ignore[method-assign]
        for _ in range(400):
            traffic._one()
    own = [kind for kind, _ in sent["chaos_whole"] if kind == "Counted"]
    assert 40 < len(own) < 130
    assert "Counted" not in {kind for kind, _ in sent[None]}
