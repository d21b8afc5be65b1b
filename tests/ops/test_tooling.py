"""Makefile, lock files and the CI entry point: what a clean clone relies on before any of our code runs."""

from __future__ import annotations

import os
import re
import subprocess
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
LOCK = ROOT / "requirements" / "dev.lock"
DEMO_LOCK = ROOT / "requirements" / "demo.lock"
NAME = re.compile(r"^([A-Za-z0-9][A-Za-z0-9._-]*)")


def normal(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def locked(path: Path) -> dict[str, str]:
    """name -> version of every pinned line."""
    pins = {}
    for line in path.read_text().splitlines():
        if match := re.match(r"^([A-Za-z0-9._\[\],-]+)==([^\s;\\]+)", line):
            pins[normal(match[1].split("[")[0])] = match[2]
    return pins


def declared() -> set[str]:
    """Names pyproject.toml asks for, the extras of `dev` resolved."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"]
    wanted = [*project["dependencies"], *extras["dev"], *extras["worker"], *extras["broker"]]
    found = {normal(match[1]) for item in wanted if (match := NAME.match(item))}
    return found - {"refold"}


def test_the_lock_holds_every_declared_dependency() -> None:
    """Goal: pyproject.toml and the lock do not drift apart. Method: compare names; `make lock` refreshes."""
    missing = declared() - set(locked(LOCK))
    assert missing == set(), f"run `make lock`: {sorted(missing)}"


def test_the_lock_satisfies_the_declared_bounds() -> None:
    from packaging.requirements import Requirement

    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    pins = locked(LOCK)
    wanted = [
        *project["dependencies"],
        *(r for group in project["optional-dependencies"].values() for r in group),
    ]
    for item in wanted:
        requirement = Requirement(item)
        if requirement.name != "refold":
            assert requirement.specifier.contains(pins[normal(requirement.name)]), item


@pytest.mark.parametrize("path", [LOCK, DEMO_LOCK], ids=lambda p: p.name)
def test_every_locked_package_has_a_hash_and_no_address(path: Path) -> None:
    text = path.read_text()
    assert re.findall(r"(?m)^(?:.*://.*|-[-i].*)$", text) == []
    for block in re.split(r"(?m)^(?=[A-Za-z0-9])", text)[1:]:
        assert "--hash=sha256:" in block, block.splitlines()[0]


def make(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    env = {**os.environ, **environment}
    env.pop("MAKEFLAGS", None)
    return subprocess.run(
        ["make", *arguments], cwd=ROOT, capture_output=True, text=True, env=env, check=False
    )


def test_make_alone_lists_the_targets() -> None:
    out = make().stdout
    for target in ("help", "demo", "test", "lint", "bench", "clean", "lock"):
        assert re.search(rf"(?m)^  make {target}\s+\S", out), target


def test_an_old_python_gets_a_message_that_says_what_to_do(tmp_path: Path) -> None:
    """Goal: no half-made environment. Method: no suitable interpreter, a fresh VENV."""
    result = make("venv", f"VENV={tmp_path / 'venv'}", "PYTHON=")
    assert result.returncode != 0
    assert "Python >= 3.11" in result.stderr
    assert "PYTHON=" in result.stderr
    assert not (tmp_path / "venv").exists()


def test_ci_runs_the_readme_test_command() -> None:
    text = (ROOT / ".ci" / "run").read_text()
    assert text.startswith("#!/usr/bin/env bash")
    assert "set -euo pipefail" in text
    assert "make test" in text
    assert "make test" in (ROOT / "README.md").read_text()
    assert os.access(ROOT / ".ci" / "run", os.X_OK)
