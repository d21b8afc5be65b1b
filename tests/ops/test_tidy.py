"""Tidiness of the repository: what a reviewer would otherwise check by eye in every change."""

from __future__ import annotations

import ast
import re
import statistics
import subprocess
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = ROOT / "streams" / "refold"

#: One idea per module: the median length that is still read in one sitting.
MEDIAN_LINES_MAX = 150
#: No single module may become a second home for everything.
MODULE_LINES_MAX = 500

#: Words that mean "not finished". The product is released as it is in the repository.
UNFINISHED = re.compile(r"\b(TODO|FIXME|XXX|HACK)\b")
#: Absolute paths of a development machine, and the address of a package index, must not be committed.
MACHINE = re.compile(r"(?<![\w/.:])/(work|root)/\w|--(extra-)?index-url[ =]\S|https?://[^ ]*/simple\b")
EMOJI = re.compile("[\U0001f300-\U0001faff\u2600-\u26ff\u2705\u274c]")


@cache
def committed() -> tuple[Path, ...]:
    """Every file git knows or would add (untracked and not ignored)."""
    out = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT, check=True, capture_output=True, text=True,
    ).stdout  # fmt: skip
    return tuple(path for name in out.splitlines() if (path := ROOT / name).is_file())


def modules() -> list[Path]:
    return [path for path in committed() if path.suffix == ".py" and path.is_relative_to(PACKAGE)]


def text_files() -> list[Path]:
    """Text files but this one, which has to spell out what it looks for."""
    kinds = {".py", ".md", ".toml", ".yaml", ".yml", ".lock", ".json", ".avsc", ""}
    return [path for path in committed() if path.suffix in kinds and path != Path(__file__).resolve()]


def names(paths: list[Path]) -> list[str]:
    return [str(path.relative_to(ROOT)) for path in paths]


def test_modules_are_short() -> None:
    lengths = {path: len(path.read_text().splitlines()) for path in modules() if path.name != "__init__.py"}
    assert statistics.median(lengths.values()) <= MEDIAN_LINES_MAX
    assert names([path for path, count in lengths.items() if count > MODULE_LINES_MAX]) == []


def test_every_module_says_what_it_is_for() -> None:
    assert names([p for p in modules() if not ast.get_docstring(ast.parse(p.read_text()))]) == []


def test_how_short_a_text_needs_no_measuring_is_said_in_one_place() -> None:
    """Goal: a limit of bytes that changes changes what is taken unmeasured with it, everywhere."""
    derived = [p for p in modules() if re.search(r"BYTES_MAX\s*//\s*(4|CHAR_BYTES_MAX)\b", p.read_text())]
    assert names(derived) == ["streams/refold/core/limits.py"]


def test_every_module_has_postponed_annotations() -> None:
    """Goal: one annotation rule everywhere; ruff asks for it only where something is annotated."""
    assert names([p for p in modules() if "from __future__ import annotations" not in p.read_text()]) == []


@pytest.mark.parametrize(
    ("what", "pattern"), [("unfinished", UNFINISHED), ("machine", MACHINE), ("emoji", EMOJI)]
)
def test_no_file_contains(what: str, pattern: re.Pattern[str]) -> None:
    found = [
        f"{path.relative_to(ROOT)}:{number}: {line.strip()[:80]}"
        for path in text_files()
        for number, line in enumerate(path.read_text(errors="replace").splitlines(), 1)
        if pattern.search(line)
    ]
    assert found == [], what


def test_tests_do_not_sleep() -> None:
    """Goal: tests wait on a condition with a deadline. Up to 0.1 s is a polling loop's pause."""
    sleeping = re.compile(r"\b(?:time|asyncio)\.sleep\((?!0\)|0?\.0\d*\)|0?\.1\))\d")
    found = [
        f"{path.relative_to(ROOT)}:{number}: {line.strip()[:80]}"
        for path in committed()
        # The simulation has a clock of its own; this file spells out what it looks for.
        if path.suffix == ".py" and path.is_relative_to(ROOT / "tests") and path != Path(__file__).resolve()
        and not path.is_relative_to(ROOT / "tests" / "simulation")
        for number, line in enumerate(path.read_text().splitlines(), 1)
        if sleeping.search(line) and "\\n" not in line  # a program inside a string
    ]  # fmt: skip
    assert found == []


def test_the_documents_a_reader_looks_for_exist() -> None:
    for name in (
        "README.md",
        "LICENSE",
        "CHANGELOG.md",
        "CONTRIBUTING.md",
        "SECURITY.md",
        "Makefile",
        ".ci/run",
    ):
        assert (ROOT / name).stat().st_size > 100, name


def test_relative_links_in_the_documents_lead_somewhere() -> None:
    broken = []
    for path in committed():
        if path.suffix != ".md":
            continue
        for target in re.findall(r"\]\(([^)#\s]+)(?:#[^)]*)?\)", path.read_text()):
            if (
                "://" not in target
                and not target.startswith("mailto:")
                and not (path.parent / target).exists()
            ):
                broken.append(f"{path.relative_to(ROOT)} -> {target}")
    assert broken == []
