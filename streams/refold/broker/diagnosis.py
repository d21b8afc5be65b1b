"""Why it did not start: the log's own words, the likely cause, and the way out."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

from refold.broker.layout import Layout
from refold.broker.ports import PortInUse
from refold.errors import ConfigError, RefoldError, StorageError, UnavailableError

#: Shown of the log. The cause is in the first ERROR and its "Caused by" lines.
LINES_MAX: Final = 12
#: Read of the log: a start writes about 10 KiB, a failing one with stack traces about 60 KiB.
TAIL_BYTES_MAX: Final = 256 * 1024
LINE_CHARS_MAX: Final = 400


@dataclass(frozen=True, slots=True)
class Cause:
    pattern: re.Pattern[str]
    error: type[RefoldError]
    text: str


#: First match wins: the specific before the general. Each was seen with Kafka 4.4.0.
CAUSES: Final = (
    Cause(
        re.compile(r"failed to bind to|BindException|Address already in use"),
        PortInUse,
        "a port it needs is in use. Stop the process that has it or give another --port.",
    ),
    Cause(
        re.compile(r"No space left on device|Not enough space|Disk quota exceeded"),
        StorageError,
        "the disk of {directory} is full. Free some space, or choose another --dir.",
    ),
    Cause(
        re.compile(r"Failed to acquire lock on file \.lock"),
        StorageError,
        "another Kafka process uses {directory}/data, although state.json does not know it. "
        "Find it with `pgrep -f kafka.Kafka`, stop it, and run `refold broker up` again.",
    ),
    Cause(
        re.compile(r"Permission denied|AccessDeniedException|Read-only file system"),
        StorageError,
        "{directory} is not writable for this user. Fix its owner, or choose another --dir.",
    ),
    Cause(
        re.compile(r"OutOfMemoryError|insufficient memory|Could not reserve enough space"),
        ConfigError,
        "it does not have enough memory. Give a larger --heap-mib, or free memory on this machine.",
    ),
    Cause(
        re.compile(r"ConfigException|requirement failed|IllegalArgumentException.*(jaas|JAAS|SASL)"),
        ConfigError,
        "Kafka refuses a setting; the log line names it. Correct the --set (or jaas) that gave it.",
    ),
    Cause(
        re.compile(
            r"meta\.properties|InconsistentClusterId|CorruptRecordException|CorruptIndexException"
            r"|Invalid cluster\.id|KafkaStorageException|snapshot.*corrupt|Error while (loading|reading) log"
        ),
        StorageError,
        "the data in {directory}/data is damaged. If you do not need it: `refold broker down --wipe "
        "--dir {directory}` and `up` again. Otherwise restore that directory from a copy.",
    ),
)  # fmt: skip


def explain(layout: Layout, *, from_byte: int, what: str) -> RefoldError:
    """The error for a start whose log begins at ``from_byte``. Reads the log, nothing else."""
    text = _tail(layout, from_byte)
    lines = relevant(text)
    shown = "".join(f"\n  | {line}" for line in lines) or "\n  | (the log is empty)"
    for cause in CAUSES:
        if any(cause.pattern.search(line) for line in lines):
            reason = cause.text.format(directory=layout.directory)
            return cause.error(f"{what}: {reason}\nFrom {layout.log}:{shown}")
    return UnavailableError(
        f"{what}, for a reason refold does not know. The log says why; if the data can go, "
        f"`refold broker down --wipe --dir {layout.directory}` starts afresh.\nFrom {layout.log}:{shown}"
    )


def relevant(text: str) -> list[str]:
    """Errors and their causes, without stack frames and without the noise of the shutdown that follows."""
    kept: list[str] = []
    fallback: list[str] = []
    for line in text.splitlines():
        if not line.strip() or line.startswith(("\tat ", "\t...")) or "[kafka-shutdown-hook]" in line:
            continue
        line = line[:LINE_CHARS_MAX]
        fallback.append(line)
        telling = re.search(r"\bERROR\b|\bFATAL\b|Exception|Error:|^Caused by|^Error|No space left", line)
        if telling and line not in kept:
            kept.append(line)
    return kept[:LINES_MAX] or fallback[-LINES_MAX:]


def _tail(layout: Layout, from_byte: int) -> str:
    try:
        with layout.log.open("rb") as file:
            end = file.seek(0, 2)
            file.seek(max(from_byte, end - TAIL_BYTES_MAX))
            return file.read().decode("utf-8", "replace")
    except FileNotFoundError:
        return ""
