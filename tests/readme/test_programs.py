"""The README's programs, run as printed against a real Kafka, a worker and ``refold registry serve``."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from engine.cluster import Cluster
from engine.workers import Worker
from readme.pages import program, programs
from refold.testing.kafka import Kafka

pytestmark = [pytest.mark.broker, pytest.mark.slow]

#: "A 20-line producer, a 10-line reader", imports and blank lines aside.
LINES_MAX = {"producer": 20, "reader": 10, "analytics": 20}

#: A program's time: the analytics consumer waits 10 s for more before it ends.
PROGRAM_S_MAX = 180

#: In front of everything else on the path: there is no refold for this interpreter.
BLOCKER = """
import sys

class NoRefold:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] == "refold":
            raise ImportError("refold is not for this program")

sys.meta_path.insert(0, NoRefold())
"""


def test_the_programs_are_as_short_as_the_page_says() -> None:
    assert programs() == list(LINES_MAX)
    for name, most in LINES_MAX.items():
        lines = [line for line in program(name).splitlines() if line.strip()]
        body = [line for line in lines if not line.startswith(("import ", "from "))]
        assert len(body) <= most, f"{name}: {len(body)} lines"
    assert "refold" not in program("analytics").replace("REFOLD_BOOTSTRAP", "").replace('"refold.state"', "")


@pytest.fixture(scope="module")
def surroundings(kafka: Kafka, tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    """The commands of the README, on ports and names of the test's own; the environment of the programs."""
    prefix = f"readme-{uuid.uuid4().hex[:8]}"
    directory = tmp_path_factory.mktemp("readme")
    kept = {name: value for name, value in os.environ.items() if not name.startswith("REFOLD_")}
    environment = {
        **kept,
        "REFOLD_BOOTSTRAP": kafka.bootstrap,
        "REFOLD_TOPIC_PREFIX": prefix,
        "STATE_TOPIC": f"{prefix}.state",
    }
    refold = [sys.executable, "-m", "refold.cli.main"]
    subprocess.run([*refold, "topology", "apply"], env=environment, check=True, capture_output=True)
    cluster = Cluster(kafka.bootstrap, prefix, partitions=8)
    with subprocess.Popen(
        [*refold, "registry", "serve", "--port", "0", "--json"],
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    ) as registry:
        try:
            assert registry.stdout is not None
            url = json.loads(registry.stdout.readline())["url"]
            with Worker(cluster, directory, "w", session_timeout_ms=10_000) as worker:
                worker.wait_live(8)
                yield {**environment, "REGISTRY": url}
        finally:
            registry.send_signal(signal.SIGTERM)


def start(name: str, directory: Path, environment: dict[str, str]) -> subprocess.Popen[str]:
    path = directory / f"{name}.py"
    path.write_text(program(name), encoding="utf-8")
    return subprocess.Popen(
        [sys.executable, str(path)],
        env=environment,
        cwd=directory,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def finish(process: subprocess.Popen[str]) -> list[str]:
    """Lines it printed; it must end by itself, without a word on stderr."""
    out, err = process.communicate(timeout=PROGRAM_S_MAX)
    assert process.returncode == 0, err
    assert "Traceback" not in err
    return out.splitlines()


def test_the_programs_run_as_printed(surroundings: dict[str, str], tmp_path: Path) -> None:
    """Goal: what the page says they print; analytics in an interpreter that cannot import refold."""
    durable, accepted, retry, context = finish(start("producer", tmp_path, surroundings))
    assert durable.startswith("durable at ")
    partition, offset = durable.removeprefix("durable at ").split()
    assert (0 <= int(partition) < 8, int(offset)) == (True, 0)
    assert accepted == "accepted as 1"
    assert retry == "the retry is a duplicate"
    # Printed by Python: a list of dicts.
    messages = eval(context, {"__builtins__": {}})
    assert [message["role"] for message in messages] == ["user", "assistant", "tool", "assistant"]
    assert messages[0]["content"] == "Where is order 17?"
    assert messages[1]["tool_calls"][0]["function"]["name"] == "track"
    assert (messages[2]["tool_call_id"], messages[2]["content"]) == ("c1", "out for delivery")
    assert messages[3]["content"] == "It arrives today."

    (tmp_path / "blocker").mkdir()
    (tmp_path / "blocker" / "sitecustomize.py").write_text(BLOCKER)
    without = {**surroundings, "PYTHONPATH": str(tmp_path / "blocker")}
    control = subprocess.run(
        [sys.executable, "-c", "import refold"], env=without, capture_output=True, text=True, check=False
    )
    assert "refold is not for this program" in control.stderr
    analytics = start("analytics", tmp_path, without)
    began = time.monotonic()
    states = finish(start("reader", tmp_path, surroundings))
    seqs = [int(line.removeprefix("chat-1 ")) for line in states]
    assert seqs == sorted(set(seqs))
    assert seqs[-1] == 4
    # The seq, and as many messages: every event of this session is one.
    assert finish(analytics) == [f"chat-1 {seq} {seq}" for seq in seqs]
    assert time.monotonic() - began < PROGRAM_S_MAX
