"""Golden bytes: what every subject version looks like on the wire, kept in ``schemas/golden``.

``PYTHONPATH=tests python -m wire.golden`` writes the files that are missing and never changes one: old bytes
are in journals for ever. Bytes stand in the JSON as ``{"$hex": …}``.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from refold.core.envelope import Envelope
from refold.wire import parts
from refold.wire.codec import encode
from refold.wire.envelope import decode_envelope, to_record
from refold.wire.journal import journal_value
from refold.wire.schemas import registry
from wire.support import minimal, sample

DIRECTORY = Path(__file__).resolve().parents[2] / "schemas" / "golden"


def to_json(value: Any) -> Any:
    if isinstance(value, bytes):
        return {"$hex": value.hex()}
    if isinstance(value, dict):
        return {key: to_json(item) for key, item in value.items()}
    if isinstance(value, list):
        return [to_json(item) for item in value]
    return value


def from_json(value: Any) -> Any:
    if isinstance(value, dict):
        if value.keys() == {"$hex"}:
            return bytes.fromhex(value["$hex"])
        return {key: from_json(item) for key, item in value.items()}
    if isinstance(value, list):
        return [from_json(item) for item in value]
    return value


def one_of_each_part() -> list[parts.Part]:
    """Every kind with the opaque fields providers want back unchanged."""
    extra = b'{"signature":"EqQBCkYIBxgCKkA=", "spaced" : 1}'
    ref = parts.BlobRef("file:///blobs/ab/cd", "ab" * 32, 5_242_880, "text/plain", "text")
    return [
        parts.text("hello", extra=extra),
        parts.Part("text", ref=ref),
        parts.tool_call(
            "call_0", "bash", '{"command": "ls -', arguments_valid=False, operation_id="r/s/call_0/1"
        ),
        parts.tool_result(
            "call_0", [parts.text("a\0b"), parts.image(url="https://x.test/i.png")], name="bash"
        ),
        parts.provider_tool_call("web_search", '{"q":1}', call_id="srv_1", status="completed", extra=extra),
        parts.provider_tool_result(
            [parts.text("found")], call_id="srv_1", name="web_search_result", json=b"[ ]"
        ),
        parts.reasoning("because", id="rs_1", summary=["one", "two"], signature="sig==", extra=extra),
        parts.reasoning(encrypted="gAAAA==", redacted=True),
        parts.image(media_type="image/png", data=b"\x89PNG\r\n", detail="high"),
        parts.audio("spoken", data=b"RIFF", format="wav", id="audio_1", expires_at=1_764_400_000),
        parts.file(file_id="file_1", filename="a.pdf", media_type="application/pdf", title="A"),
        parts.uri("s3://bucket/key", media_type="video/mp4", modality="video"),
        parts.refusal("I will not", extra=extra),
        parts.citation("cited", kind="char_location", source="Doc", document_index=0, start=0, end=5),
        parts.compaction("earlier", id="cmp_1", encrypted="blob"),
        parts.generic("video_embedding", b'{"type":"video_embedding","v":[1,2.50]}'),
        parts.sealed("key-1", "AES-256-GCM", b"\0" * 12, b"\xff" * 16, 16, "text"),
        parts.Part("hologram", "of a newer writer", data=b"\0\0\0\0\1opaque", type_version=7),
    ]


def cases() -> dict[str, tuple[str, Any, bytes]]:
    """File name → (subject, record, framed bytes) for the newest version of everything."""
    known = registry()
    found: dict[str, tuple[str, Any, bytes]] = {}
    for subject in known.subjects:
        entry = known.get(subject)
        for suffix, record in (("", sample(entry.schema)), (".minimal", minimal(entry.schema))):
            found[f"{subject}.v{entry.version}{suffix}.json"] = (subject, record, encode(subject, record))
    message = {
        "message_id": "m1",
        "role": "assistant",
        "content": [parts.to_wire(part) for part in one_of_each_part()],
    }
    payload = encode("refold.event.MessageAppended", message)
    version = known.get("refold.event.MessageAppended").version
    found[f"refold.event.MessageAppended.v{version}.every-part.json"] = (
        "refold.event.MessageAppended",
        message,
        payload,
    )
    env = Envelope("e-1", "acme", "s-1", "MessageAppended", event_time_ms=1_764_400_000_000, payload=payload)
    env = decode_envelope(encode("refold.Envelope", to_record(env)))
    spliced = journal_value(7, 1_764_400_000_001, 3, 4711, env)
    record = {
        "seq": 7,
        "time_ms": 1_764_400_000_001,
        "inbox_partition": 3,
        "inbox_offset": 4711,
        "event": to_record(env),
    }
    version = known.get("refold.JournalRecord").version
    found[f"refold.JournalRecord.v{version}.spliced.json"] = ("refold.JournalRecord", record, spliced)
    return found


def main() -> None:
    DIRECTORY.mkdir(exist_ok=True)
    for name, (subject, record, framed) in cases().items():
        path = DIRECTORY / name
        if path.exists():
            continue
        version = registry().get(subject).version
        document = {"subject": subject, "version": version, "value": to_json(record), "hex": framed.hex()}
        path.write_text(json.dumps(document, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
        print(path.name)


if __name__ == "__main__":
    main()
