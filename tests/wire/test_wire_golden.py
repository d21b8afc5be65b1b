from __future__ import annotations

import json

import pytest

from refold.wire.codec import decode
from refold.wire.journal import decode_journal
from refold.wire.parts import KINDS, check_parts, from_wire, to_wire
from refold.wire.schemas import registry
from wire.golden import DIRECTORY, cases, from_json, one_of_each_part, to_json

NAMES = sorted(path.name for path in DIRECTORY.glob("*.json"))


@pytest.mark.parametrize("name", NAMES)
def test_golden_bytes_decode_under_the_newest_reader(name: str) -> None:
    """Every version ever pinned reads as the newest one; the values written are all still there."""
    document = json.loads((DIRECTORY / name).read_text(encoding="utf-8"))
    framed = bytes.fromhex(document["hex"])
    decoded = decode(framed)
    assert (decoded.subject, decoded.version) == (document["subject"], document["version"])
    written = from_json(document["value"])
    assert {key: decoded.record[key] for key in written if key in decoded.record} == written


@pytest.mark.parametrize("name", sorted(cases()))
def test_the_newest_version_writes_its_golden_bytes(name: str) -> None:
    """A changed byte is a changed wire format: old readers and byte-for-byte comparisons would break."""
    assert name in NAMES, "run PYTHONPATH=tests python -m wire.golden and commit the file"
    document = json.loads((DIRECTORY / name).read_text(encoding="utf-8"))
    subject, record, framed = cases()[name]
    assert document["hex"] == framed.hex()
    assert document["value"] == to_json(record)
    assert document["subject"] == subject


def test_every_pinned_version_has_golden_bytes() -> None:
    for entry in registry().entries:
        assert f"{entry.subject}.v{entry.version}.json" in NAMES


def test_every_part_kind_is_in_the_golden_message() -> None:
    """All kinds, an unknown one and a part kept outside come back as they were."""
    name = next(n for n in NAMES if n.endswith(".every-part.json"))
    content = decode(bytes.fromhex(json.loads((DIRECTORY / name).read_text())["hex"])).record["content"]
    read = [from_wire(part) for part in content]
    check_parts(read)
    assert read == one_of_each_part()
    assert [to_wire(part) for part in read] == content
    assert {part.type for part in read} == {*KINDS, "hologram"}


def test_the_spliced_journal_record_is_an_ordinary_record() -> None:
    name = next(n for n in NAMES if n.endswith(".spliced.json"))
    framed = bytes.fromhex(json.loads((DIRECTORY / name).read_text())["hex"])
    entry = decode_journal(framed)
    assert entry[:4] == (7, 1_764_400_000_001, 3, 4711)
    assert decode(framed).record["event"]["payload"] == entry.env.payload
