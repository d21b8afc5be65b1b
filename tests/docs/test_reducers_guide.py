"""``docs/guides/reducers.md`` as printed: its modules on real workers, a version bump, its commands."""

from __future__ import annotations

import asyncio
import importlib
import json
import re
import sys
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from client.worker_process import STARTED_S_MAX, Worker, refold, worker
from docs.test_tools_guide import OPTION, execute
from readme.pages import ROOT, blocks
from refold.cli.main import run
from refold.client import Refold
from refold.core import reducers as pure
from refold.reducers import declared
from refold.settings import Settings
from refold.testing.kafka import Kafka

GUIDE = ROOT / "docs/guides/reducers.md"
FIRST, READING, SECOND, SAMPLE = blocks(GUIDE.read_text("utf-8"), "python")


@pytest.fixture
def shop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The directory of ``shop.py``; this process forgets its reducers afterwards."""
    directory = tmp_path / "modules"
    directory.mkdir()
    monkeypatch.setenv("PYTHONPATH", str(directory))
    monkeypatch.syspath_prepend(str(directory))
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    yield directory
    pure.install(None)
    declared().pop("orders", None)  # type: ignore[attr-defined]
    sys.modules.pop("shop", None)


def imported(directory: Path, code: str) -> Any:
    (directory / "shop.py").write_text(f"{code}\n\n{SAMPLE}", encoding="utf-8")
    importlib.invalidate_caches()
    known = sys.modules.get("shop")
    return importlib.import_module("shop") if known is None else importlib.reload(known)


def test_it_has_twenty_five_lines() -> None:
    assert len(FIRST.splitlines()) == 25
    assert FIRST.count("@refold.reducer") == 1


@pytest.mark.broker
@pytest.mark.slow
@pytest.mark.timeout(3 * STARTED_S_MAX)
async def test_the_guide_as_printed_over_a_version_bump(
    kafka: Kafka, tmp_path: Path, shop: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Goal: parts are what the page says, before and after their version was raised; stored = folded; and an
    older worker does not go on where a newer one was."""
    prefix = f"guide-{uuid.uuid4().hex[:8]}"

    async def command(*arguments: str, code: int = 0) -> dict[str, Any]:
        """In this process: a new one would take longer to begin than all of its work."""
        place = ("--bootstrap", kafka.bootstrap, "--prefix", prefix)
        capsys.readouterr()
        assert await asyncio.to_thread(run, [*arguments, *place, "--reducers", "shop", "--json"]) == code
        found: dict[str, Any] = json.loads(capsys.readouterr().out.splitlines()[-1])
        return found

    refold(kafka.bootstrap, prefix, "topology", "apply", "--partitions", "2")
    imported(shop, FIRST)
    async with Refold(Settings(topic_prefix=prefix), bootstrap=kafka.bootstrap) as rf:
        session, other = rf.session("chat-17"), rf.session("chat-18")
        with worker(kafka.bootstrap, prefix, tmp_path, "w-0", REFOLD_WORKER__REDUCERS="shop") as first:
            names: dict[str, Any] = {"session": session, "__name__": "guide"}
            await execute(READING, GUIDE, 1, names)
            await other.publish_json("OrderPlaced", {"id": "o-3", "cents": 70})
            await (await other.publish_json("OrderPlaced", {"cents": 1})).accepted()
            stopped = await other.reduced("orders")
            assert stopped is not None
            assert (stopped.quarantined, stopped.error) == (True, "raised: KeyError")
            assert stopped.value.open == {"o-3": 70}
            first.stop()

        imported(shop, SECOND)
        part = await session.reduced("orders", min_seq=0, timeout=0.5)  # no worker: of the topic, and upcast
        assert part is not None
        assert (part.version, part.value.spent) == (2, {"EUR": 4200})
        with worker(kafka.bootstrap, prefix, tmp_path, "w-0", REFOLD_WORKER__REDUCERS="shop") as second:
            await session.publish_json("OrderShipped", {"id": "o-2"}, wait="accepted")
            part = await session.reduced("orders")
            assert part is not None
            assert (part.seq, part.value.open, part.value.shipped, part.value.spent) == (
                4,
                {},
                2,
                {"EUR": 5190},
            )
            view = await session.state()
            assert view is not None
            assert view.reduced["orders"].version == 2
            recovered = await session.recover()
            assert (recovered.snapshot.reduced, recovered.parts_behind) == (view.reduced, ())

            folded = await command("session", "fold", "--all")
            assert (folded["sessions"], folded["different"], folded["parts_not_compared"]) == (2, 0, {})
            listed = (await command("reducer", "list", "--quarantined"))["parts"]
            assert [(row["session"], row["error"]) for row in listed] == [("chat-18", "raised: KeyError")]
            released = (await command("reducer", "release", "orders", "chat-17"))["released"]
            assert [(row["session"], row["seq"]) for row in released] == [("chat-17", 5)]
            assert await session.reduced("orders", min_seq=5) == part
            done = await command("reducer", "release", "orders", "--all", "--refold", code=1)
            assert [row["session"] for row in done["released"]] == ["chat-17"]
            left = done["left"]
            assert ["stops again at seq 2" in row["error"] for row in left] == [True]
            assert (await command("session", "fold", "--all"))["different"] == 0
            second.stop()

    imported(shop, FIRST)
    older = Worker(kafka.bootstrap, prefix, tmp_path, "w-0", REFOLD_WORKER__REDUCERS="shop")
    older.start()
    try:
        assert older.process is not None
        assert older.process.wait(STARTED_S_MAX) == 78
    finally:
        older.kill()
    assert "version 2 of the reducer orders; this worker has version 1" in older.log


def test_the_page_names_commands_that_exist(capsys: pytest.CaptureFixture[str]) -> None:
    lines = [line for block in blocks(GUIDE.read_text("utf-8"), "console") for line in block.splitlines()]
    calls = [line.split() for line in lines if line.startswith("refold ")]
    assert len(calls) == 5
    for words in calls:
        assert run([*words[1:3], "--help"]) == 0
        help_text = capsys.readouterr().out
        for option in OPTION.findall(" ".join(words)):
            assert re.search(rf"{option}\b", help_text), words
