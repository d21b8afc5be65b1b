"""``refold rejected``: look at records that could not be taken, and send them again.

Payload bytes are printed only by ``show --payload``: a terminal's scrollback is a log too.
"""

from __future__ import annotations

import re
import time
from collections import deque
from datetime import datetime
from typing import TYPE_CHECKING, Annotated, Final

import typer

from refold.cli.options import (
    LIST_LIMIT_DEFAULT,
    LIST_LIMIT_MAX,
    BootstrapOption,
    JsonOption,
    PrefixOption,
    YesOption,
    settings_for,
)
from refold.cli.output import Output
from refold.cli.telling import iso
from refold.errors import NotFound, UsageError

if TYPE_CHECKING:
    from refold.cli.rejected_records import RejectedRecord, Selection

#: Bytes shown by `show --payload`: 16 lines of 16.
PREVIEW_BYTES_MAX: Final = 256
_UNITS_MS: Final = {"s": 1_000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}

CodeOption = Annotated[
    list[str] | None, typer.Option("--code", help="Only this reason code. May be repeated.")
]
OriginOption = Annotated[
    str | None,
    typer.Option("--origin", help="Only from here: topic, topic/partition or topic/partition/offset."),
]
SinceOption = Annotated[
    str | None, typer.Option("--since", help="Rejected at or after: ISO time, or an age such as 30m, 2h, 7d.")
]
UntilOption = Annotated[str | None, typer.Option("--until", help="Rejected before: the same forms.")]

app = typer.Typer(help="Records that could not be taken: list, show, replay.", no_args_is_help=True)


@app.command("list")
def list_(
    code: CodeOption = None,
    origin: OriginOption = None,
    since: SinceOption = None,
    until: UntilOption = None,
    limit: Annotated[
        int,
        typer.Option(
            "--limit", min=1, max=LIST_LIMIT_MAX, help="Rows shown: the newest of each partition's."
        ),
    ] = LIST_LIMIT_DEFAULT,
    bootstrap: BootstrapOption = None,
    prefix: PrefixOption = None,
    as_json: JsonOption = False,
) -> None:
    """List rejected records with code, origin and time; never their content."""
    from refold.cli.rejected_topic import RejectedTopic

    selection = _selection(code, origin, since, until)
    shown: deque[RejectedRecord] = deque(maxlen=limit)
    by_code: dict[str, int] = {}
    with RejectedTopic(settings_for(bootstrap=bootstrap, prefix=prefix)) as topic:
        for record in topic.read(selection):
            shown.append(record)
            by_code[record.code] = by_code.get(record.code, 0) + 1
    out = Output(as_json)
    total = sum(by_code.values())
    if not as_json and shown:
        out.table(
            ("record", "code", "origin", "rejected", "key", "bytes", "reason"),
            (
                (
                    r.reference,
                    r.code,
                    r.origin,
                    _iso(r.time_ms),
                    r.as_json()["key"],
                    r.as_json()["bytes"],
                    r.reason,
                )
                for r in shown
            ),
        )
    counts = ", ".join(f"{name} {count}" for name, count in sorted(by_code.items()))
    out.say(f"{total} rejected: {counts}" if total else "nothing rejected")
    if total > len(shown):
        out.note(
            f"showing {len(shown)} of {total}; narrow it with --code, --origin, --since, or raise --limit"
        )
    out.result(
        {"total": total, "by_code": dict(sorted(by_code.items())), "records": [r.as_json() for r in shown]}
    )


@app.command()
def show(
    record: Annotated[str, typer.Argument(metavar="PARTITION/OFFSET", help="As printed by list.")],
    payload: Annotated[bool, typer.Option("--payload", help="Also show the first bytes.")] = False,
    bootstrap: BootstrapOption = None,
    prefix: PrefixOption = None,
    as_json: JsonOption = False,
) -> None:
    """Show one rejected record: reason, way out, headers; its bytes only with --payload."""
    from refold.cli.rejected_records import readable
    from refold.cli.rejected_topic import RejectedTopic

    with RejectedTopic(settings_for(bootstrap=bootstrap, prefix=prefix)) as topic:
        found = next(topic.read(_selection(references=[record])), None)
    if found is None:
        raise NotFound(f"there is no rejected record {record}: `refold rejected list` shows what is there.")
    out = Output(as_json)
    fields = found.as_json()
    headers = [[name, readable(value)] for name, value in found.headers]
    if not as_json:
        times = {"time_ms": _iso(found.time_ms), "append_ms": _iso(found.append_ms)}
        out.table(("field", "value"), ((name, times.get(name, value)) for name, value in fields.items()))
        out.say()
        out.table(("header", "value"), headers)
    fields["headers"] = headers
    if payload and found.value is not None:
        head = found.value[:PREVIEW_BYTES_MAX]
        out.say()
        for line in hexdump(head):
            out.say(line)
        if len(found.value) > len(head):
            out.say(f"… {len(found.value) - len(head)} bytes more")
        fields["payload_hex"] = head.hex()
    out.result(fields)


@app.command()
def replay(
    records: Annotated[
        list[str] | None,
        typer.Argument(metavar="PARTITION/OFFSET", help="These records; none: select by options."),
    ] = None,
    code: CodeOption = None,
    origin: OriginOption = None,
    since: SinceOption = None,
    until: UntilOption = None,
    everything: Annotated[bool, typer.Option("--all", help="All rejected records that can succeed.")] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Say what would be sent, send nothing.")] = False,
    force: Annotated[
        bool, typer.Option("--force", help="Send also what can only be rejected again.")
    ] = False,
    yes: YesOption = False,
    bootstrap: BootstrapOption = None,
    prefix: PrefixOption = None,
    as_json: JsonOption = False,
) -> None:
    """Send rejected records to the inbox again, byte for byte, after their cause was mended.

    The worker judges them anew. Replaying twice is harmless: what was accepted is then a duplicate.
    """
    from refold.cli.rejected_records import HOPELESS
    from refold.cli.rejected_topic import RejectedTopic
    from refold.core.codes import way_out

    if not (records or code or origin or since or until or everything):
        raise UsageError("say what to replay: PARTITION/OFFSET, --code, --origin, --since, --until or --all.")
    out = Output(as_json)
    selection = _selection(code, origin, since, until, records)
    by_code: dict[str, int] = {}
    with RejectedTopic(settings_for(bootstrap=bootstrap, prefix=prefix)) as topic:
        references = set()
        for record in topic.read(selection):
            by_code[record.code] = by_code.get(record.code, 0) + 1
            if records:  # only then is the set bounded: by what was typed
                references.add(record.reference)
        if missing := sorted(set(records or ()) - references):
            raise NotFound(
                f"there is no rejected record {', '.join(missing)}: `refold rejected list` shows them."
            )
        hopeless = {name: count for name, count in sorted(by_code.items()) if name in HOPELESS}
        if hopeless and not force and (records or code):
            ways = "\n".join(f"  {name} ({count}): {way_out(name)}" for name, count in hopeless.items())
            raise UsageError(f"these can only be rejected again; --force sends them all the same:\n{ways}")
        skipped = {} if force else hopeless
        total = sum(by_code.values()) - sum(skipped.values())
        for name, count in skipped.items():
            out.note(f"skipping {count} x {name}: it can only be rejected again (--force sends it)")
        sent = 0
        if total and not dry_run:
            out.confirm(f"Send {total} records to the inbox again?", yes=yes)
            chosen = (record for record in topic.read(selection) if record.code not in skipped)
            sent = topic.replay(chosen, on_sent=lambda count: out.note(f"{count} of {total} sent"))
    out.say(f"{total} records would be sent" if dry_run else f"{sent} records sent to the inbox")
    counts = {name: count for name, count in sorted(by_code.items()) if name not in skipped}
    out.result({"sent": sent, "selected": total, "dry_run": dry_run, "by_code": counts, "skipped": skipped})


def hexdump(data: bytes) -> list[str]:
    """``offset  hex  text`` lines of 16 bytes; unprintable bytes are dots."""
    lines = []
    for start in range(0, len(data), 16):
        row = data[start : start + 16]
        text = "".join(chr(byte) if 32 <= byte < 127 else "." for byte in row)
        lines.append(f"{start:06x}  {row.hex(' '):<47}  {text}")
    return lines


def parse_time(text: str, *, now_ms: int) -> int:
    """Milliseconds of an ISO time (local where it names no zone) or of an age before ``now_ms``."""
    if match := re.fullmatch(r"(\d+)([smhd])", text.strip()):
        return now_ms - int(match[1]) * _UNITS_MS[match[2]]
    try:
        return int(datetime.fromisoformat(text).timestamp() * 1000)
    except ValueError:
        raise UsageError(
            f"{text!r} is no time: use 2026-01-31T12:00:00+00:00, or an age such as 30m, 2h, 7d."
        ) from None


def _selection(
    code: list[str] | None = None,
    origin: str | None = None,
    since: str | None = None,
    until: str | None = None,
    references: list[str] | None = None,
) -> Selection:
    from refold.cli.rejected_records import Selection
    from refold.core.codes import REJECT_CODES

    for name in code or ():
        if name not in REJECT_CODES:
            raise UsageError(f"{name!r} is no reason code; there are: {', '.join(REJECT_CODES)}.")
    for reference in references or ():
        if not re.fullmatch(r"\d{1,9}/\d{1,18}", reference):
            raise UsageError(
                f"{reference!r} names no record: write PARTITION/OFFSET, as `refold rejected list` prints it."
            )
    now_ms = int(time.time() * 1000)
    return Selection(
        codes=frozenset(code or ()),
        origin=origin,
        since_ms=None if since is None else parse_time(since, now_ms=now_ms),
        until_ms=None if until is None else parse_time(until, now_ms=now_ms),
        references=frozenset(references or ()),
    )


def _iso(time_ms: int | None) -> str | None:
    return None if time_ms is None else iso(time_ms)
