"""Reading Markdown: code blocks, links, headings. Enough for our own pages."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
README = ROOT / "README.md"

_FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def pages() -> list[Path]:
    """Every page a reader may open."""
    return sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")])


def program(name: str) -> str:
    """The README's program that is marked ``<!-- program: NAME -->``, as printed."""
    text = README.read_text("utf-8")
    _, found, rest = text.partition(f"<!-- program: {name} -->\n")
    assert found, f"README.md has no program {name}"
    block = _FENCE.match(rest)
    assert block is not None, f"no code follows the mark of {name}"
    assert block[1] == "python"
    return block[2]


def programs() -> list[str]:
    return re.findall(r"<!-- program: (\S+) -->", README.read_text("utf-8"))


def blocks(text: str, language: str) -> list[str]:
    return [code for kind, code in _FENCE.findall(text) if kind == language]


def without_code(text: str) -> str:
    return _FENCE.sub("", text)


def anchors(text: str) -> set[str]:
    """Anchors of the headings, as GitHub makes them."""
    found = set()
    for heading in re.findall(r"^#+ (.+)$", without_code(text), re.MULTILINE):
        plain = re.sub(r"[^\w\- ]", "", heading.lower().replace("`", ""))
        found.add(plain.strip().replace(" ", "-"))
    return found
