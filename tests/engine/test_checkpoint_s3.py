"""The same on S3: moto's server in this process, reached over HTTP by s3fs as a bucket would be."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from engine.checkpoint_world import KEYS, PARTITION, World, frontier
from engine.test_checkpoint_store import restored
from refold.engine.checkpoints.remote import Remote
from refold.engine.checkpoints.retention import PRUNE_AGE_MS
from refold.errors import UnavailableError

BUCKET = "refold-checkpoints"


@pytest.fixture(scope="module")
def s3() -> Iterator[str]:
    """Endpoint of an S3 with one empty bucket; it and credentials are in the environment, as for a worker."""
    import boto3
    from moto.server import ThreadedMotoServer

    patch = pytest.MonkeyPatch()
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    endpoint = f"http://{host}:{port}"
    for name, value in (
        ("AWS_ACCESS_KEY_ID", "test"),
        ("AWS_SECRET_ACCESS_KEY", "test"),
        ("AWS_DEFAULT_REGION", "us-east-1"),
        ("AWS_ENDPOINT_URL", endpoint),
    ):
        patch.setenv(name, value)
    boto3.client("s3", endpoint_url=endpoint).create_bucket(Bucket=BUCKET)
    yield endpoint
    server.stop()
    patch.undo()


@pytest.fixture
def world(s3: str, tmp_path: Path) -> Iterator[World]:
    made = World(tmp_path, f"s3://{BUCKET}/{tmp_path.name}")
    yield made
    made.close()


def test_published_incrementally_restored_pruned(world: World) -> None:
    """The whole life of checkpoints on S3: upload, reuse, restore, retention with the store's own times."""
    world.go_on(200)
    first = world.publish(keep=2)
    world.go_on()
    second = world.publish(keep=2)
    assert 0 < second.uploaded_bytes < first.uploaded_bytes
    assert second.reused_bytes > 0
    assert world.publish(keep=2).checkpoint is None
    world.go_on()
    third = world.publish(keep=2)
    assert world.remote.checkpoints(PARTITION) == [third.checkpoint, second.checkpoint]
    assert world.remote.partitions() == [PARTITION]
    assert restored(world)[0] == frontier(202)
    stored = world.remote.files(PARTITION)
    assert all(one.modified_ms is not None for one in stored.values())
    found = world.remote.key_filter(world.remote.manifest(PARTITION, str(third.checkpoint)))
    assert found is not None
    assert (found.holds(b"a/0"), found.holds(b"b/never"), found.keys) == (True, False, KEYS)
    world.now_ms += PRUNE_AGE_MS + 60_000
    assert len(world.publish(keep=2).pruned.files) > 0
    assert len(world.remote.files(PARTITION)) < len(stored)
    assert restored(world)[0] == frontier(202)


def test_a_damaged_object_leads_to_the_older_checkpoint(world: World) -> None:
    world.go_on(5)
    first = world.publish()
    world.go_on(5)
    second = world.publish()
    older, newer = (
        {entry.sha256: entry for entry in world.remote.manifest(PARTITION, str(one.checkpoint)).files}
        for one in (first, second)
    )
    address = next(address for address in newer if address not in older)
    world.remote._fs.pipe_file(f"{world.remote._dir(PARTITION)}/files/{address}", b"damaged")
    at, told = restored(world)
    assert at == frontier(5)
    assert told.reasons() == ["damaged"]


def test_a_bucket_that_is_not_there_and_a_store_that_does_not_answer_are_explained(
    s3: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(UnavailableError, match=r"s3://no-such-bucket.* bucket does not exist"):
        Remote("s3://no-such-bucket/x", "t").put_file(PARTITION, Path(__file__), "0" * 64)
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:9")
    nowhere = Remote(f"s3://{BUCKET}/elsewhere", "t")
    with pytest.raises(UnavailableError, match="reachable"):
        nowhere.checkpoints(PARTITION)
