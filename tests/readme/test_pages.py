"""What the pages name exists: links and anchors, commands and their options, tests, make targets."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from readme.pages import README, ROOT, anchors, blocks, pages, without_code
from refold.cli.main import NOUNS, run

LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")
NAMED = [README, ROOT / "docs/guarantees.md", ROOT / "docs/concepts/bad-input.md"]


def relative(path: Path) -> str:
    return str(path.relative_to(ROOT))


@pytest.mark.parametrize("page", pages(), ids=relative)
def test_links_resolve(page: Path) -> None:
    """Relative links and their anchors; nothing leaves the repository."""
    for target in LINK.findall(without_code(page.read_text("utf-8"))):
        if target.startswith(("http://", "https://", "mailto:")):
            continue
        name, _, anchor = target.partition("#")
        path = (page.parent / name).resolve() if name else page
        assert path.exists(), f"{target} does not exist"
        assert path.is_relative_to(ROOT), f"{target} is outside"
        if anchor:
            assert anchor in anchors(path.read_text("utf-8")), f"{target}: no such heading"


def test_every_page_is_in_the_index() -> None:
    index = (ROOT / "docs/README.md").read_text("utf-8")
    linked = {(ROOT / "docs" / name).resolve() for name in LINK.findall(index)}
    missing = [
        relative(path)
        for path in (ROOT / "docs").rglob("*.md")
        if path.name != "README.md" and path.resolve() not in linked
    ]
    assert missing == []


@pytest.mark.parametrize("page", NAMED, ids=relative)
def test_named_tests_and_files_exist(page: Path) -> None:
    """Every path in code marks or links that begins with a directory of ours."""
    text = page.read_text("utf-8")
    found = set(re.findall(r"`((?:tests|streams|docs|deploy)/[\w./-]+)`", text))
    found |= set(re.findall(r"`(docker-compose\.yml)`", text))
    if page.name != "bad-input.md":
        tests = {name for name in found if name.startswith("tests/")}
        tests |= {name for name in LINK.findall(text) if name.startswith("tests/")}
        assert len(tests) > 10
    for name in found:
        assert (ROOT / name).exists(), name


def test_every_guarantee_has_a_test() -> None:
    """Each row of the README's table links one; each G of the long version names one."""
    table = README.read_text("utf-8").split("| guarantee | test |\n| --- | --- |\n")[1].split("\n\n")[0]
    for row in table.splitlines():
        assert re.search(r"\]\(tests/[\w/]+\.py\)", row), row
    long = (ROOT / "docs/guarantees.md").read_text("utf-8")
    paragraphs = re.findall(r"^\*\*(G\d+)\..*?(?=\n\n)", long, re.MULTILINE | re.DOTALL)
    assert paragraphs == [f"G{number}" for number in range(1, len(paragraphs) + 1)]
    for found in re.finditer(r"^\*\*G\d+\..*?(?=\n\n)", long, re.MULTILINE | re.DOTALL):
        assert "`tests/" in found[0], found[0][:40]


def commands() -> list[tuple[str, str]]:
    """(page, command) of every ``refold …`` in console blocks and code marks of README and guarantees."""
    found = []
    for page in NAMED:
        text = page.read_text("utf-8")
        lines = [line for block in blocks(text, "console") for line in block.splitlines()]
        lines += re.findall(r"`(refold [^`]+)`", without_code(text))
        found += [
            (relative(page), line.split("#")[0].strip()) for line in lines if line.startswith("refold ")
        ]
    return sorted(set(found))


def test_named_commands_exist(capsys: pytest.CaptureFixture[str]) -> None:
    """Noun, command and options, asked of the command line itself."""
    named = commands()
    assert len(named) >= 8
    for page, line in named:
        words = [word for word in line.split()[1:] if re.fullmatch(r"--?[a-z][\w-]*|[a-z-]+", word)]
        path = [word for word in words if not word.startswith("-")][:2]
        assert path[0] in NOUNS, f"{page}: {line}"
        assert run([*path, "--help"]) == 0, f"{page}: {line}"
        help_text = capsys.readouterr().out
        for option in (word for word in words if word.startswith("--")):
            assert re.search(rf"{option}\b", help_text), f"{page}: {line}"


def test_a_command_that_does_not_exist_would_be_found(capsys: pytest.CaptureFixture[str]) -> None:
    """The check above can fail."""
    assert run(["session", "explode", "--help"]) != 0
    assert "explode" in capsys.readouterr().err


def test_named_make_targets_and_modules_exist() -> None:
    makefile = (ROOT / "Makefile").read_text("utf-8")
    text = README.read_text("utf-8")
    for target in re.findall(r"\bmake ([a-z]+)\b", "\n".join(blocks(text, "console"))):
        assert re.search(rf"^{target}:", makefile, re.MULTILINE), target
    modules = re.findall(r"python -m ([\w.]+)", text)
    assert modules
    for module in modules:
        assert (ROOT / f"{module.replace('.', '/')}.py").exists(), module
