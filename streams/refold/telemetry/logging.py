"""structlog for our code, the same processors for everybody else's (stdlib ``logging``): one stream, stderr.

JSON, one object per line, in production or when nobody watches; a console with colours on a terminal. Event
names are snake_case identifiers and stable. Payload text is never logged: keys that could hold it are
replaced by their size, values of secret keys by a mask, long texts are cut.
"""

from __future__ import annotations

import logging
import os
import re
import sys
from collections.abc import Mapping
from typing import Any, Final, TextIO

import structlog
from structlog.typing import EventDict, Processor, WrappedLogger

from refold.telemetry.plaintext import plain
from refold.telemetry.tracebacks import DescribeException

#: A log line names things; it does not carry them. Longer values are cut and say how long they were.
VALUE_CHARS_MAX: Final = 500
MASK: Final = "********"
#: Keys that could carry what a person wrote. Their value is never logged, whoever passes it.
PAYLOAD_KEYS: Final = frozenset(
    {
        "payload",
        "content",
        "text",
        "value",
        "body",
        "message_text",
        "arguments",
        "result",
        "summary",
        "data",
        "record",
    }
)
_SECRET_KEY: Final = re.compile(
    r"password|secret|token|authorization|api_?key|credential|jaas|private_?key", re.IGNORECASE
)
_LEVELS: Final[Mapping[str, int]] = {
    "debug": logging.DEBUG,
    "info": logging.INFO,
    "warning": logging.WARNING,
    "error": logging.ERROR,
}
#: These log every connection or request at info; what matters of it is in our own events.
_NOISY: Final = ("faust", "mode", "aiohttp", "asyncio", "fsspec")


def configure(
    *, fmt: str = "auto", level: str = "info", environment: str = "dev", stream: TextIO | None = None
) -> None:
    """Set up logging for this process; call it once, at the start of a command. Safe to call again.

    ``fmt`` is ``json``, ``console`` or ``auto`` (see ``logging.format`` in the settings).
    """
    out = sys.stderr if stream is None else stream
    as_json = fmt == "json" or (fmt == "auto" and (environment == "prod" or not out.isatty()))
    shared: list[Processor] = [
        structlog.contextvars.merge_contextvars,
        structlog.stdlib.add_log_level,
        structlog.stdlib.add_logger_name,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
        # Turns exc_info=True into the exception while it is still the current one.
        _current_exception,
        guard,
    ]
    final: list[Processor] = [DescribeException(as_text=not as_json)]
    if as_json:
        final.append(structlog.processors.JSONRenderer(ensure_ascii=False, default=str))
    else:
        colors = out.isatty() and "NO_COLOR" not in os.environ
        final.append(_on_one_line)
        final.append(
            structlog.dev.ConsoleRenderer(colors=colors, exception_formatter=structlog.dev.plain_traceback)
        )
    structlog.configure(
        processors=[
            structlog.stdlib.filter_by_level,
            *shared,
            structlog.stdlib.ProcessorFormatter.wrap_for_formatter,
        ],
        logger_factory=structlog.stdlib.LoggerFactory(),
        wrapper_class=structlog.stdlib.BoundLogger,
        cache_logger_on_first_use=True,
    )
    handler = logging.StreamHandler(out)
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=[structlog.stdlib.ExtraAdder(), *shared],
            processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, *final],
        )
    )
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(_LEVELS[level])
    for name in _NOISY:
        logging.getLogger(name).setLevel(max(logging.WARNING, _LEVELS[level]))


def _current_exception(logger: WrappedLogger, method: str, event: EventDict) -> EventDict:
    if event.get("exc_info") is True:
        event["exc_info"] = sys.exc_info()
    return event


def _on_one_line(logger: WrappedLogger, method: str, event: EventDict) -> EventDict:
    """For a console: what a producer chose as an id must not forge a line. JSON escapes by itself."""
    return {
        key: plain(value) if isinstance(value, str) and key != "exception" else value
        for key, value in event.items()
    }


def guard(logger: WrappedLogger, method: str, event: EventDict) -> EventDict:
    """Processor: no payload, no secret, no endless line. Also applied to other libraries' records."""
    return {key: _clean(key, value) for key, value in event.items()}


def _clean(key: str, value: Any) -> Any:
    if key in PAYLOAD_KEYS:
        return (
            f"<{len(value)} {'bytes' if isinstance(value, bytes | bytearray) else 'items'}>"
            if hasattr(value, "__len__")
            else "<…>"
        )
    if _SECRET_KEY.search(key):
        return MASK
    if isinstance(value, bytes | bytearray | memoryview):
        return f"<{len(value)} bytes>"
    if isinstance(value, Mapping):
        return {str(k): _clean(str(k), v) for k, v in value.items()}
    if isinstance(value, str) and len(value) > VALUE_CHARS_MAX and key != "exception":
        return f"{value[:VALUE_CHARS_MAX]}… ({len(value)} characters)"
    return value


def bound(**names: Any) -> Any:
    """Bind names (``partition=3``) to every line logged inside: ``with bound(partition=3): …``."""
    return structlog.contextvars.bound_contextvars(**names)
