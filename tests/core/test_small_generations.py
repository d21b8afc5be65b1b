"""Every history of six events of one generation by two holders: invariants, and what must never happen."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from refold.core import Accepted, Session, decide, evolve, initial, well_formed
from refold.core.progress import Batch, Delta, Progress, advance
from refold.wire.envelope import decode_envelope, encode_envelope
from refold.wire.events import decode_event
from refold.wire.snapshot import decode_session, encode_snapshot

from .build import SESSION, TENANT, Inbox, attempted, event, finished, markers, message, started

Make = Callable[[int], tuple[str, dict[str, Any]]]

FAR_MS = 10_000
LONGEST = 6

#: Event number n. Leases of h1 never end within the history, those of h2 at once.
ALPHABET: dict[str, Make] = {
    "start": lambda n: started("g", lease_ms=FAR_MS),
    "try again": lambda n: attempted("g", 2, holder="h1", lease_ms=0),
    "take over": lambda n: attempted("g", 2, holder="h2", lease_ms=0),
    "third": lambda n: attempted("g", 3, holder="h2", mode="restart", lease_ms=0),
    "renew": lambda n: event(
        "GenerationLeaseRenewed", generation_id="g", attempt=1, holder="h1", lease_ms=FAR_MS
    ),
    "stop": lambda n: event("GenerationStopped", generation_id="g"),
    "finish": lambda n: finished("g", "ab", 1),
    "finish second": lambda n: finished("g", "ab", 1, attempt=2),
    "fail": lambda n: event("GenerationFailed", generation_id="g", attempt=1, code="x"),
    "message": lambda n: message("m-g", "assistant", "ab"),
    "close": lambda n: event("SessionClosed"),
    "delete": lambda n: event("SessionDeleted"),
}
#: One more symbol: the batch that the finishes name, of the present attempt.
BATCH = "batch"


def test_every_history_of_six_events_of_a_generation() -> None:
    inbox = Inbox()
    prepared = {}
    for n in range(LONGEST):
        for name, make in ALPHABET.items():
            env = decode_envelope(encode_envelope(inbox.envelope(*make(n), event_id=f"{name}/{n}")))
            prepared[n, name] = (env, decode_event(env))
    states: list[tuple[bytes, Progress | None, tuple[str, ...]]] = [(b"", None, ())]
    accepted = finishes = 0
    for n in range(LONGEST):
        following: list[tuple[bytes, Progress | None, tuple[str, ...]]] = []
        for state, progress, path in states:
            if progress is not None:
                batch = Batch("g", progress.attempt, progress.produced + 1, (Delta("text", 0, b"ab"),))
                after, verdict = advance(progress.copy(), batch, n, n)
                if repr(verdict) == "Applied()":
                    following.append((state, after, (*path, BATCH)))
            for name in ALPHABET:
                session = decode_session(state) if state else initial(TENANT, SESSION)
                env, decoded = prepared[n, name]
                if hasattr(decoded, "progress"):
                    decoded.progress = progress
                was = session.generations.get("g")
                before = None if was is None else was.state
                ruling = decide(session, env, decoded, 1000)
                if not isinstance(ruling, Accepted):
                    continue
                at = (*path, name)
                is_open = ["g"] if before in ("started", "stopping") else []
                evolve(session, ruling.seq, ruling.time_ms, 3, n, env, decoded)
                well_formed(session)
                ahead = None if progress is None else progress.copy()
                for marker in markers(session, decoded, ruling, is_open):
                    ahead, verdict = advance(ahead, marker, n, n)
                    assert repr(verdict) == "Applied()", (at, marker)
                if name == "delete":
                    ahead = None
                check(session, before, ahead, at)
                finishes += name.startswith("finish")
                accepted += 1
                following.append((encode_snapshot(session) if session.exists else b"", ahead, at))
        states = following
    assert accepted > 5_000, accepted
    assert finishes > 400, finishes


def check(session: Session, before: str | None, progress: Progress | None, at: tuple[str, ...]) -> None:
    row = session.generations.get("g")
    if row is None:
        assert progress is None, at
        return
    assert progress is not None, at
    # Row and batches agree on the attempt and on the end, however the events came.
    assert row.attempt == progress.attempt, at
    assert (row.state in ("finished", "failed")) == bool(progress.ended), at
    # D19: the first final state stays.
    if before in ("finished", "failed"):
        assert row.state == before, at
    # A finished generation's message is in the session, once; an unfinished one's only if it was appended.
    shown = [m.id for m in session.recent].count("m-g")
    life = at[len(at) - at[::-1].index("delete") :] if "delete" in at else at
    assert shown == int(row.state == "finished" or "message" in life), at
    if row.state == "finished":
        assert progress.produced >= row.last_seq == 1, at
    assert (row.holder is None) == (row.state in ("finished", "failed")), at
