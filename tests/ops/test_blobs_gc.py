"""O7: what a record names is never removed, whoever writes meanwhile; what none names goes."""

from __future__ import annotations

import asyncio
import os
import threading
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from core.build import Inbox, event, message
from core.forkkit import fork
from refold.client.payloads import encode_payload, offload
from refold.errors import NotFound, UsageError
from refold.ops.blobs import gc
from refold.ops.blobs.gc import collect
from refold.ops.blobs.marking import topics_of, unmark
from refold.ops.blobs.sweeping import SWEPT, Sweeper
from refold.topology.names import TopicNames
from refold.wire import parts
from refold.wire.blobs import BlobStore, sha256_hex
from refold.wire.snapshot import encode_snapshot

DAY_S = 86_400.0


@pytest.fixture
def store(tmp_path: Path) -> BlobStore:
    return BlobStore(f"file://{tmp_path}/blobs")


def put(store: BlobStore, data: bytes, age_s: float = 3 * DAY_S) -> str:
    """Stored so long ago."""
    store.put(data, media_type="text/plain", field="text")
    digest = sha256_hex(data)
    then = time.time() - age_s
    os.utime(store.path_of(digest), (then, then))
    return digest


def there(store: BlobStore, digest: str) -> bool:
    return Path(store.path_of(digest)).exists()


Mark = Callable[..., Awaitable[int]]


def topics(records: list[bytes], meanwhile: Callable[[], None] = lambda: None) -> Mark:
    """The topics' records as ``unmark_topics`` reads them; ``meanwhile`` happens behind the last one."""

    async def read(_config: Any, _prefixes: Any, candidates: set[bytes], _progress: Any) -> int:
        for record in records:
            unmark(candidates, record)
        meanwhile()
        return len(records)

    return read


def run(store: BlobStore, monkeypatch: pytest.MonkeyPatch, mark: Mark, **options: Any) -> gc.Collected:
    monkeypatch.setattr(gc, "unmark_topics", mark)
    options = {"grace_s": DAY_S, "dry_run": False, "progress": lambda _: None, **options}
    return asyncio.run(collect(store, {}, ["t"], **options))


def test_o7_what_no_record_names_goes_and_the_rest_stays(
    store: BlobStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    named, lost, young = put(store, b"named"), put(store, b"lost"), put(store, b"young", age_s=3_600)
    root = Path(store.root)
    other = root / "sha256" / "README"
    other.write_text("not ours")
    aside = Path(f"{store.path_of(lost)}.{'0' * 32}")
    aside.write_bytes(b"half a bl")
    os.utime(aside, (1, 1))
    record = b"\x80\x01" + named.encode() + b"\x06"
    planned = run(store, monkeypatch, topics([record]), dry_run=True)
    assert (planned.unreferenced, planned.removed) == (1, 0)
    assert all(there(store, digest) for digest in (named, lost, young))
    done = run(store, monkeypatch, topics([record]))
    assert (done.blobs, done.young, done.referenced, done.removed, done.left_aside) == (3, 1, 1, 1, 1)
    assert done.removed_bytes == len(b"lost")
    assert (there(store, named), there(store, lost), there(store, young)) == (True, False, True)
    assert other.exists()
    assert not aside.exists()
    again = run(store, monkeypatch, topics([record]))
    assert (again.removed, again.referenced) == (0, 1)


def test_o7_an_event_on_its_way_keeps_its_blob(store: BlobStore, monkeypatch: pytest.MonkeyPatch) -> None:
    """The writer stores content that is there already, unnamed and old, while the topics are read, and its
    event comes when they have been: storing it made the blob young."""
    digest = put(store, b"again")
    fresh = sha256_hex(b"new")

    def writer() -> None:
        store.put(b"again", media_type="text/plain", field="text")
        store.put(b"new", media_type="text/plain", field="text")

    done = run(store, monkeypatch, topics([], writer))
    assert (done.removed, done.touched) == (0, 1)
    assert there(store, digest)
    assert there(store, fresh)


def test_o7_a_writer_and_a_sweep_at_the_same_moment(store: BlobStore) -> None:
    """Whichever comes first at every step: when the writer returns and the sweep has ended, it is there."""
    data = b"the very same content"
    digest = put(store, data)
    sweeper = Sweeper(store)
    removed = 0
    for _ in range(150):
        then = time.time() - DAY_S
        os.utime(store.path_of(digest), (then, then))
        gate = threading.Barrier(2)

        def write(gate: threading.Barrier = gate) -> None:
            gate.wait()
            store.put(data, media_type="text/plain", field="text")

        thread = threading.Thread(target=write)
        thread.start()
        gate.wait()
        removed += sweeper.remove(digest, time.time() - DAY_S / 2)
        thread.join()
        assert there(store, digest)
    assert removed <= 150


def test_o7_a_failure_while_reading_removes_nothing(
    store: BlobStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    digest = put(store, b"lost")

    async def broken(*_: Any) -> int:
        raise NotFound("topic t.evals does not exist")

    with pytest.raises(NotFound):
        run(store, monkeypatch, broken)
    assert there(store, digest)


def test_o7_what_a_killed_sweep_moved_aside_comes_back(
    store: BlobStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    digest = put(store, b"moved")
    path = Path(store.path_of(digest))
    path.rename(str(path) + SWEPT)
    done = run(store, monkeypatch, topics([digest.encode()]))
    assert done.referenced == 1
    assert there(store, digest)
    assert not Path(str(path) + SWEPT).exists()


def test_o7_a_large_store_takes_several_passes(store: BlobStore, monkeypatch: pytest.MonkeyPatch) -> None:
    """Memory is bounded by the blobs of one pass; each pass reads the topics anew."""
    digests = [put(store, f"blob {i}".encode()) for i in range(9)]
    records = [digest.encode() for digest in digests[:4]]
    done = run(store, monkeypatch, topics(records), candidates_max=2)
    assert (done.passes, done.removed, done.referenced, done.records) == (5, 5, 4, 20)
    assert [there(store, digest) for digest in digests] == [True] * 4 + [False] * 5


def test_o7_a_list_to_keep(store: BlobStore, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Whatever else names blobs: a dump of a database's results."""
    digest, lost = put(store, b"in postgres"), put(store, b"lost")
    listing = tmp_path / "refs.json"
    listing.write_text(f'{{"sha256":"{digest}","length":4}}\n')
    run(store, monkeypatch, topics([]), keep=[listing])
    assert there(store, digest)
    assert not there(store, lost)
    put(store, b"lost")
    with pytest.raises(UsageError, match="cannot be read"):
        run(store, monkeypatch, topics([]), keep=[tmp_path / "nowhere"])


def test_o7_an_object_store(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is not a file system of this machine: by its own times, and without moving anything."""
    store = BlobStore("memory://gc-test")
    ref = store.put(b"x" * 10, media_type="a", field="text")
    done = run(store, monkeypatch, topics([]), grace_s=-60.0)
    assert done.removed == 1
    with pytest.raises(NotFound):
        store.get(ref)
    store.put(b"x" * 10, media_type="a", field="text")
    assert (run(store, monkeypatch, topics([]))).young == 1
    assert store.get(ref) == b"x" * 10


@given(st.binary(max_size=80), st.binary(max_size=80), st.sampled_from([b"", b"0", b"a", b"ab12"]))
def test_o7_a_digest_is_found_whatever_stands_around_it(before: bytes, after: bytes, near: bytes) -> None:
    """A length or another field beside it may look like hex digits."""
    digest = sha256_hex(before + after).encode()
    candidates = {digest, sha256_hex(b"other").encode()}
    unmark(candidates, before + near + digest + near + after)
    assert digest not in candidates


def test_o7_references_are_found_in_every_record_that_holds_them(store: BlobStore) -> None:
    """Events with parts, with nested parts, with arguments; the state; a fork's first event and its state."""
    long = "w" * 70_000
    said = {"content": [parts.text(long), parts.tool_result("c", [parts.text("x" + long)])]}
    outside = asyncio.run(offload({**message("m")[1], **said}, store, 65_536))
    arguments = asyncio.run(offload({"arguments": '"' + "y" * 70_000 + '"'}, store, 65_536))
    digests = {sha256_hex(text.encode()).encode() for text in (long, "x" + long)}
    payload = encode_payload("MessageAppended", outside)
    inbox = Inbox()
    inbox.ok(("MessageAppended", {**outside, "content": [parts.to_wire(p) for p in outside["content"]]}))
    made = fork(inbox)
    made.ok(event("FactSet", name="f", value="1"))
    for record in (payload, inbox.journal[0], encode_snapshot(inbox.session), made.journal[0],
                   encode_snapshot(made.session)):  # fmt: skip
        candidates = set(digests)
        unmark(candidates, record)
        assert not candidates
    assert arguments["arguments_ref"]["sha256"]


def test_o7_every_topic_that_holds_events_states_or_results_is_read() -> None:
    names = TopicNames("p")
    read = set(topics_of("p"))
    every = {
        value
        for name in dir(TopicNames)
        if isinstance(getattr(TopicNames, name), property)
        and isinstance(value := getattr(names, name), str)
        and value.startswith("p.")
    }
    assert every - read == {names.history}, "offsets only; a new topic is read or named here"
