"""The tables of ``docs/reference/schemas.md``; ``PYTHONPATH=tests python -m wire.reference`` writes them."""

from __future__ import annotations

from pathlib import Path

from refold.core.codes import WAY_OUT, RejectCode
from refold.wire.compat import RULES
from refold.wire.schemas import registry

PAGE = Path(__file__).resolve().parents[2] / "docs" / "reference" / "schemas.md"

WIRE_CODES: tuple[RejectCode, ...] = (
    "empty_value",
    "bad_frame",
    "bad_magic",
    "unknown_schema",
    "unknown_subject",
    "undecodable",
    "bad_text",
    "lone_surrogate",
)


def subjects() -> str:
    lines = ["| subject | version | id | topic | what it is |", "| --- | --- | --- | --- | --- |"]
    for subject, info in registry().subjects.items():
        entry = registry().get(subject)
        topic = f"`{{prefix}}.{info.topic}`" if info.topic else ""
        lines.append(f"| `{subject}` | {entry.version} | {entry.id} | {topic} | {info.description} |")
    return "\n".join(lines)


def reserved() -> str:
    return ", ".join(f"`{name.removeprefix('refold.event.')}`" for name in sorted(registry().reserved))


def rules() -> str:
    lines = ["| rule | why it is refused, and what to do |", "| --- | --- |"]
    lines += [f"| `{rule}` | {text.format(old='*old*', new='*new*')} |" for rule, text in RULES.items()]
    return "\n".join(lines)


def codes() -> str:
    lines = ["| code | way out |", "| --- | --- |"]
    lines += [f"| `{code}` | {WAY_OUT[code]} |" for code in WIRE_CODES]
    return "\n".join(lines)


TABLES = {"subjects": subjects, "reserved": reserved, "rules": rules, "codes": codes}


def filled(page: str) -> str:
    """The page with every table between its markers as it should be."""
    for name, table in TABLES.items():
        begin, end = f"<!-- {name} -->", f"<!-- /{name} -->"
        head, found, rest = page.partition(begin)
        _, closed, tail = rest.partition(end)
        assert found, name
        assert closed, name
        page = f"{head}{begin}\n{table()}\n{end}{tail}"
    return page


if __name__ == "__main__":
    PAGE.write_text(filled(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
