"""The core imports the standard library (parts that are pure) and refold.errors, and reads no clock."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

import refold.core

ROOT = Path(refold.core.__file__).parent
MODULES = sorted(ROOT.glob("*.py"))

#: What a pure module may need. Anything else is a decision to take here, in review.
ALLOWED = {
    "__future__",
    "collections.abc",
    "hashlib",
    "json",
    "refold.core",
    "refold.errors",
    "typing",
    "zlib",
}
#: Built-ins whose result depends on the process or that do I/O.
FORBIDDEN_NAMES = {"open", "input", "print", "hash", "id", "globals", "exec", "eval", "__import__"}


def imported(tree: ast.AST) -> set[str]:
    names: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            names.add(node.module or "")
    return {"refold.core" if n == "refold.core" or n.startswith("refold.core.") else n for n in names}


@pytest.mark.parametrize("path", MODULES, ids=lambda p: p.stem)
def test_imports(path: Path) -> None:
    assert imported(ast.parse(path.read_text(encoding="utf-8"))) <= ALLOWED


@pytest.mark.parametrize("path", MODULES, ids=lambda p: p.stem)
def test_nothing_that_depends_on_the_process(path: Path) -> None:
    """No I/O, no hash(), and no iteration over a set whose order could reach the state."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    in_hash = {
        call
        for node in ast.walk(tree)
        if isinstance(node, ast.FunctionDef) and node.name == "__hash__"
        for call in ast.walk(node)
    }
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node not in in_hash:
            assert node.func.id not in FORBIDDEN_NAMES, f"line {node.lineno}: {node.func.id}()"
        loops = [node.iter] if isinstance(node, ast.For) else []
        if isinstance(node, (ast.ListComp, ast.DictComp, ast.GeneratorExp)):
            loops += [g.iter for g in node.generators]
        for loop in loops:
            assert not isinstance(loop, (ast.Set, ast.SetComp)), f"line {node.lineno}: iterates over a set"
            if isinstance(loop, ast.Call) and isinstance(loop.func, ast.Name):
                assert loop.func.id not in ("set", "frozenset"), f"line {node.lineno}: iterates over a set"


def test_no_asserts_guard_the_model() -> None:
    """``assert`` disappears under -O: the core raises InvariantViolation instead."""
    for path in MODULES:
        tree = ast.parse(path.read_text(encoding="utf-8"))
        assert not [n.lineno for n in ast.walk(tree) if isinstance(n, ast.Assert)], path.name
