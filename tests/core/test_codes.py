"""Closed lists: reject codes and event types."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import refold.core
from refold.core.codes import REJECT_CODES, WAY_OUT
from refold.core.types import ALL_TYPES, IMPLEMENTED_TYPES, RESERVED_TYPES, WORKER_TYPES
from refold.wire.schemas import registry

ROOT = Path(refold.core.__file__).parent
PAGE = Path(__file__).parents[2] / "docs" / "concepts" / "session.md"


def test_every_code_has_a_way_out_and_a_line_in_the_docs() -> None:
    assert list(WAY_OUT) == list(dict.fromkeys(WAY_OUT))
    assert set(WAY_OUT) == set(REJECT_CODES)
    text = PAGE.read_text(encoding="utf-8")
    assert [c for c in REJECT_CODES if f"`{c}`" not in text] == []


def test_every_code_is_commented_and_no_other_is_used() -> None:
    source = (ROOT / "codes.py").read_text(encoding="utf-8")
    block = source.split("Literal[")[1].split("\n]")[0]
    lines = [line.strip() for line in block.strip().splitlines()]
    for at, line in enumerate(lines):
        if line.startswith('"'):
            assert lines[at - 1].startswith("# "), f"{line} has no comment"
    used = set()
    for path in ROOT.glob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            name = getattr(getattr(node, "func", None), "id", "")
            if name in ("Rejected", "Parked", "InvalidRecord"):
                code = node.args[0]  # type: ignore[attr-defined]
                assert isinstance(code, ast.Constant), f"{path.name}:{code.lineno}"
                used.add(code.value)
    assert used <= set(REJECT_CODES)


def test_types_are_named_once_and_documented() -> None:
    assert not IMPLEMENTED_TYPES & RESERVED_TYPES
    assert WORKER_TYPES <= IMPLEMENTED_TYPES
    assert all(re.fullmatch(r"[A-Z][A-Za-z]+", t) for t in ALL_TYPES)
    text = PAGE.read_text(encoding="utf-8")
    assert [t for t in sorted(IMPLEMENTED_TYPES) if t not in text] == []


def test_every_implemented_type_has_a_schema_and_every_reserved_one_none() -> None:
    assert {f"refold.event.{t}" for t in IMPLEMENTED_TYPES} == {
        s for s in registry().subjects if s.startswith("refold.event.")
    }
    assert {f"refold.event.{t}" for t in RESERVED_TYPES} == registry().reserved
