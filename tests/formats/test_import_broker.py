"""All recorded sets through a real broker and worker: imported, folded, exported, imported again."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from client.worker_process import Worker, worker
from refold.cli.session_export import export
from refold.client import Refold
from refold.formats.jsonio import first_difference, loads
from refold.formats.sources import Reading
from refold.formats.sources.files import documents
from refold.formats.validate import problems
from refold.settings import Settings
from refold.testing.kafka import Kafka
from refold.wire.blobs import BlobStore

from .support import SUPPORTED, read, recorded

pytestmark = [pytest.mark.broker, pytest.mark.slow]

#: Small enough that texts and kept frames go to the blob store and have to come back from there.
INLINE_BYTES_MAX = 4_096
#: Sessions read side by side.
READ_AT_ONCE = 16


class Place:
    """A deployment of its own: prefix, blob store, worker; commands run in its directory."""

    def __init__(self, kafka: Kafka, prefix: str, directory: Path) -> None:
        self.prefix = prefix
        self.bootstrap = kafka.bootstrap
        self.directory = directory
        self.blobs = f"file://{directory}/blobs"

    def command(self, *arguments: str) -> tuple[int, dict[str, Any], str]:
        own = {
            "REFOLD_BLOBS__URL": self.blobs,
            "REFOLD_BLOBS__INLINE_BYTES_MAX": str(INLINE_BYTES_MAX),
            "REFOLD_BOOTSTRAP": self.bootstrap,
            "REFOLD_TOPIC_PREFIX": self.prefix,
            "NO_COLOR": "1",
        }
        kept = {name: value for name, value in os.environ.items() if not name.startswith("REFOLD_")}
        done = subprocess.run(
            [sys.executable, "-m", "refold.cli.main", *arguments, "--json"],
            capture_output=True,
            text=True,
            timeout=240,
            env={**kept, **own},
            cwd=self.directory,
        )
        lines = done.stdout.strip().splitlines()
        return done.returncode, json.loads(lines[-1]) if lines else {}, done.stderr

    def client(self) -> Refold:
        settings = Settings(
            topic_prefix=self.prefix, blobs={"url": self.blobs, "inline_bytes_max": INLINE_BYTES_MAX}
        )
        return Refold(settings, bootstrap=self.bootstrap)


@pytest.fixture
def place(kafka: Kafka, topic_prefix: str, tmp_path: Path) -> Place:
    made = Place(kafka, topic_prefix.rstrip("-")[-40:].strip("-"), tmp_path)
    code, _, err = made.command("topology", "apply", "--partitions", "4")
    assert code == 0, err
    return made


def test_every_recorded_set_comes_back_through_kafka(place: Place) -> None:
    """Goal: nothing is rejected; a second import sends nothing; state = fold(journal) for every session; each
    file's export equals the file value by value; both providers would take every session's context."""
    files = [str(recorded(name)) for name in SUPPORTED]
    running: Worker
    with worker(place.bootstrap, place.prefix, place.directory, "w-0") as running:
        code, first, err = place.command("import", *files)
        assert code == 0, err + running.log[-3000:]
        assert first["accepted"] == first["sent"] == first["events"]
        assert (first["conversations"], first["rejected"], first["duplicates"]) == (580, 0, 0)
        code, second, err = place.command("import", *files)
        assert code == 0, err
        assert (second["sent"], second["already_there"]) == (0, first["events"])
        code, fold, err = place.command("session", "fold", "--all")
        assert code == 0, err + str(fold)
        asyncio.run(_compare(place))


async def _compare(place: Place) -> None:
    """Every file's export and every session's contexts, some sessions at a time."""
    blobs = BlobStore(place.blobs)
    turns = asyncio.Semaphore(READ_AT_ONCE)
    async with place.client() as rf:

        async def documents_of(name: str, session: str) -> list[Any]:
            async with turns:
                chat = rf.session(session)
                for format_ in ("openai", "anthropic"):
                    context = await chat.context(format_)
                    if context.messages:
                        assert problems(context.request, format_) == [], (name, session)
                return [loads(line) for line in await export(chat, "source", blobs)]

        for name in SUPPORTED:
            path = recorded(name)
            found = await asyncio.gather(*(documents_of(name, one.session) for one in read(path)))
            source = [document.value for document in documents(path, Reading())]
            exported = [document for one in found for document in one]
            assert first_difference(source, exported) is None, name
        (child,) = read(recorded("claude-code/50a7220d-subagent-a21e2f5.jsonl"))
        assert child.parent is not None
        (row,) = await rf.session(child.parent).children()
        assert (row["session"], row["kind"]) == (child.session, "child")
        found = await rf.session(child.session).parent()
        assert found is not None
        assert (found[0].id, found[1]) == (child.parent, row["call"])
