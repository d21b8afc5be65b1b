"""Reading source files: plain or gzip, JSON Lines or one JSON document, strict JSON, every line by number.

A line that cannot be read stops the file with its number in the error: a half-imported file that nobody
noticed is worse than one that says where it is damaged. Everything before it was already yielded; an import
can be run again after the repair, because event ids depend on content only.
"""

from __future__ import annotations

import gzip
import zlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any, Final

from refold.errors import InvalidRecord, NotFound, StorageError
from refold.formats.jsonio import loads, loads_replacing

#: Longest line read. Recorded sessions reach 400 kB a line; 64 MiB leaves room for embedded images while a
#: file that is no text at all cannot fill the memory.
LINE_BYTES_MAX: Final = 64 * 1024 * 1024
#: Largest file read as ONE JSON document (it has to be in memory whole, about ten times its size as objects).
DOCUMENT_BYTES_MAX: Final = 256 * 1024 * 1024
#: Lines looked at to tell a format. Claude Code transcripts may begin with a few records of other kinds.
HEAD_LINES: Final = 20


@dataclass(slots=True)
class Reading:
    """How to read, and what reading changed: nothing but surrogates, and those only when asked to."""

    replace_surrogates: bool = False
    replaced: int = field(default=0)

    def value(self, text: bytes, where: str) -> Any:
        if not self.replace_surrogates:
            return loads(text, where=where)
        value, count = loads_replacing(text, where=where)
        self.replaced += count
        return value


@dataclass(frozen=True, slots=True)
class Document:
    """One JSON value of a file.

    ``index`` counts from 0 in the file; ``lines`` says whether a line is a value.
    """

    index: int
    value: Any
    lines: bool


def documents(path: Path, reading: Reading) -> Iterator[Document]:
    """The values of a file in order: one per line, the elements of a JSON array, or the one value there is.

    Raises :class:`NotFound`, :class:`StorageError` (unreadable, damaged gzip) or :class:`InvalidRecord`
    naming file and line. Blocks on disk reads.
    """
    if _is_lines(path):
        for index, (number, line) in enumerate(_lines(path)):
            yield Document(index, reading.value(line, f"{path.name} line {number}"), True)
        return
    value = reading.value(_whole(path), path.name)
    items = value if isinstance(value, list) and not _is_chat(value) else [value]
    for index, item in enumerate(items):
        yield Document(index, item, False)


def head(path: Path) -> list[Any]:
    """The first values of a file, as far as they are JSON; for telling the format."""
    reading = Reading(replace_surrogates=True)
    values: list[Any] = []
    try:
        for document in documents(path, reading):
            values.append(document.value)
            if len(values) == HEAD_LINES:
                break
    except InvalidRecord:
        if not values:
            raise
    return values


def _is_chat(value: list[Any]) -> bool:
    """A bare list of messages is one conversation, any other list is a list of documents."""
    return bool(value) and isinstance(value[0], dict) and "role" in value[0]


def _is_lines(path: Path) -> bool:
    """Whether the first line is a whole value, and not a list of documents.

    A damaged first line is found later.
    """
    for number, line in _lines(path):
        try:
            value, _ = loads_replacing(line, where=f"{path.name} line {number}")
        except InvalidRecord:
            return False
        return not isinstance(value, list) or _is_chat(value)
    return True


def _lines(path: Path) -> Iterator[tuple[int, bytes]]:
    """(line number from 1, bytes) of every line that is not blank."""
    pieces = _read(path, lambda stream: iter(lambda: stream.readline(LINE_BYTES_MAX + 1), b""))
    for number, line in enumerate(pieces, start=1):
        if len(line) > LINE_BYTES_MAX:
            raise InvalidRecord(
                "too_large", f"{path.name} line {number} is longer than {LINE_BYTES_MAX} bytes"
            )
        text = line.removeprefix(b"\xef\xbb\xbf") if number == 1 else line
        if text.strip():
            yield number, text.rstrip(b"\r\n")


def _whole(path: Path) -> bytes:
    data = b"".join(_read(path, lambda stream: iter([stream.read(DOCUMENT_BYTES_MAX + 1)])))
    if len(data) > DOCUMENT_BYTES_MAX:
        raise InvalidRecord(
            "too_large",
            f"{path.name} is one JSON document above {DOCUMENT_BYTES_MAX} bytes; write one value per line",
        )
    return data.removeprefix(b"\xef\xbb\xbf")


def _read(path: Path, pieces: Any) -> Iterator[bytes]:
    try:
        with _open(path) as stream:
            yield from pieces(stream)
    except FileNotFoundError:
        raise NotFound(f"there is no file {path}") from None
    except (gzip.BadGzipFile, EOFError, zlib.error) as error:
        raise StorageError(f"{path.name} is damaged gzip ({error}); fetch it again") from None
    except OSError as error:
        raise StorageError(f"cannot read {path}: {error.strerror or error}") from None


def _open(path: Path) -> IO[bytes]:
    with path.open("rb") as stream:
        packed = stream.read(2) == b"\x1f\x8b"
    return gzip.open(path, "rb") if packed else path.open("rb")  # type: ignore[return-value]
