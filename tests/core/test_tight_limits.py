"""The same random histories under tiny limits: every bound is reached in a few events, and holds.

With the real limits a random history rarely reaches a bound; most faults the fold ever had sat there.
"""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import refold.core
from refold.core import evolve, initial
from refold.wire.snapshot import decode_session, encode_snapshot

from .build import SESSION, TENANT, fold_bytes
from .histories import histories

TIGHT = {
    "ALIASES_MAX": 2,
    "ANSWERS_MAX": 1,
    "BRANCH_BYTES_MAX": 50_000,
    "BRANCH_MESSAGES_MAX": 3,
    "CLOSED_CALLS_MAX": 1,
    "DEDUP_EVENT_IDS_MAX": 3,
    "DEDUP_MESSAGE_IDS_MAX": 2,
    "OLDER_OPEN_CALLS_MAX": 3,
    "OPEN_CALLS_MAX": 3,
    "ORPHANS_BYTES_MAX": 1_500,
    "ORPHANS_MAX": 2,
    "PRODUCERS_MAX": 1,
    "SYSTEM_MESSAGES_MAX": 1,
    "TOOLS_BYTES_MAX": 1_500,
    "TRAIL_MAX": 2,
    "TRUNKS_MAX": 1,
    "WINDOW_BYTES_DEFAULT": 60_000,
    "WINDOW_BYTES_MAX": 70_000,
    "WINDOW_MESSAGES_DEFAULT": 4,
    "WINDOW_MESSAGES_MAX": 6,
}


@contextmanager
def tight_limits(values: Mapping[str, int] = TIGHT) -> Iterator[int]:
    """Every module of the core under other limits; yields how many names were changed."""
    changed = 0
    with pytest.MonkeyPatch.context() as patch:
        for info in pkgutil.iter_modules(refold.core.__path__):
            module = importlib.import_module(f"refold.core.{info.name}")
            for name, value in values.items():
                if info.name != "limits" and hasattr(module, name):
                    patch.setattr(module, name, value)
                    changed += 1
        yield changed


def test_the_patch_reaches_every_limit() -> None:
    with tight_limits() as changed:
        assert changed >= len(TIGHT)


@settings(
    max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large]
)
@given(st.data())
def test_every_bound_holds_and_the_fold_is_total(data: st.DataObject) -> None:
    """S1 to S8 after every event (the strategy checks them), F1 and F3 at the end."""
    with tight_limits():
        inbox = data.draw(histories(longest=60))
        if not inbox.session.exists:
            return
        whole = encode_snapshot(inbox.session)
        entries = inbox.entries()
        assert fold_bytes(entries) == whole
        session = initial(TENANT, SESSION)
        for entry, decoded in entries:
            if session.exists:
                session = decode_session(encode_snapshot(session))
            evolve(session, entry.seq, entry.time_ms, entry.partition, entry.offset, entry.env, decoded)
        assert encode_snapshot(session) == whole
