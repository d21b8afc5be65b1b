"""The blob store: durable before the event, verified on the way back, never outside the configured store."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from refold.engine.checkpoints.remote import Remote
from refold.errors import ConfigError, NotFound, StorageError, UnavailableError, UsageError
from refold.wire import blobs
from refold.wire.blobs import BlobStore, sha256_hex


@pytest.fixture
def store(tmp_path: Path) -> BlobStore:
    return BlobStore(f"file://{tmp_path}/blobs")


def files(root: Path) -> list[Path]:
    return sorted(p for p in root.rglob("*") if p.is_file())


def test_what_was_put_comes_back(store: BlobStore, tmp_path: Path) -> None:
    data = os.urandom(100_000)
    ref = store.put(data, media_type="image/png", field="data")
    assert ref == {
        "uri": f"file://{tmp_path}/blobs/sha256/{ref['sha256'][:2]}/{ref['sha256'][2:4]}/{ref['sha256']}",
        "sha256": sha256_hex(data),
        "length": 100_000,
        "media_type": "image/png",
        "field": "data",
    }
    assert store.get(ref) == data


def test_the_same_bytes_are_stored_once_and_nothing_is_left_aside(store: BlobStore, tmp_path: Path) -> None:
    """Goal: writing is idempotent; no temporary file remains."""
    first = store.put(b"x" * 1000, media_type="a", field="text")
    assert store.put(b"x" * 1000, media_type="a", field="text") == first
    assert [p.name for p in files(tmp_path)] == [first["sha256"]]


def test_a_half_written_file_is_replaced(store: BlobStore, tmp_path: Path) -> None:
    """Goal: what a crash left under the final name (another length) is not taken for the blob."""
    ref = store.put(b"whole", media_type="a", field="text")
    files(tmp_path)[0].write_bytes(b"wh")
    assert store.put(b"whole", media_type="a", field="text") == ref
    assert store.get(ref) == b"whole"


@pytest.mark.parametrize("damage", [b"Whole", b"", b"whole and more"])
def test_other_bytes_are_refused(store: BlobStore, tmp_path: Path, damage: bytes) -> None:
    ref = store.put(b"whole", media_type="a", field="text")
    files(tmp_path)[0].write_bytes(damage)
    with pytest.raises(StorageError, match="not what the event names"):
        store.get(ref)


def test_a_missing_blob_names_the_store_and_the_uri(store: BlobStore, tmp_path: Path) -> None:
    ref = store.put(b"whole", media_type="a", field="text")
    files(tmp_path)[0].unlink()
    with pytest.raises(NotFound, match=r"blobs\.url") as caught:
        store.get(ref)
    assert ref["uri"] in str(caught.value)


def test_a_reference_cannot_make_a_reader_open_something_else(store: BlobStore, tmp_path: Path) -> None:
    """Goal: only the configured store is read, whatever uri or digest an event carries."""
    secret = tmp_path / "secret"
    secret.write_bytes(b"secret")
    honest = {"sha256": sha256_hex(b"secret"), "length": 6, "media_type": "a", "field": "text"}
    with pytest.raises(NotFound):
        store.get({**honest, "uri": f"file://{secret}"})
    for digest in ("../../secret", "A" * 64, "0" * 63, "é" * 64):
        with pytest.raises(StorageError, match="SHA-256"):
            store.get({**honest, "sha256": digest, "uri": f"file://{secret}"})


def test_sizes_are_limited(store: BlobStore, monkeypatch: pytest.MonkeyPatch) -> None:
    ref = store.put(b"0123456789", media_type="a", field="text")
    monkeypatch.setattr(blobs, "BLOB_BYTES_MAX", 9)
    with pytest.raises(UsageError, match="limit"):
        store.put(b"0123456789", media_type="a", field="text")
    with pytest.raises(StorageError, match="limit"):
        store.get(ref)


def test_other_stores_work_through_fsspec() -> None:
    store = BlobStore("memory://refold-test-blobs")
    ref = store.put(b"x" * 10, media_type="a", field="text")
    assert ref["uri"].startswith("memory://")
    assert store.get(ref) == b"x" * 10


def test_an_unknown_scheme_is_a_config_error() -> None:
    with pytest.raises(ConfigError, match="nosuch"):
        BlobStore("nosuch://bucket")


@pytest.mark.parametrize(
    ("url", "error"),
    [("nosuch://u:topsecret@h/x", ConfigError), ("ftp://u:topsecret@127.0.0.1:9/x", UnavailableError)],
)
def test_what_a_url_holds_of_credentials_is_not_in_its_error(url: str, error: type[Exception]) -> None:
    """Also where the store is asked as soon as it is made, and does not answer."""
    with pytest.raises(error) as caught:
        BlobStore(url)
    assert "topsecret" not in str(caught.value)
    assert "blobs.url" in str(caught.value)
    with pytest.raises(error) as caught:
        Remote(url, "refold")
    assert "topsecret" not in str(caught.value)
    assert "worker.checkpoint_url" in str(caught.value)


def test_a_store_that_cannot_be_written_says_the_event_was_not_sent(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("not a directory")
    with pytest.raises(StorageError, match="not sent"):
        BlobStore(f"file://{tmp_path}/file/blobs").put(b"x", media_type="a", field="text")
