"""Two runners of one call; one is stopped in front of the effect past its lease, and woken: many rounds.

``python tests/client/two_runners.py --rounds 200`` starts a broker and a worker of its own, prints one line
of counts (JSON); exit 1 when any operation took effect twice, was lost, or came back with two results.
``--no-lease`` is the control: runners that do not look at their lease must be caught.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
import uuid
from collections import Counter
from pathlib import Path
from typing import Any

TESTS = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(TESTS))

from client.file_gateway import FileGateway  # noqa: E402 - the tests' own directory comes first
from client.worker_process import refold, worker  # noqa: E402

#: Longer than a round ever takes on a busy machine.
ANSWER_S = 60.0
#: What the runners are told to run, in turn; how often it must have taken effect, and what is said then.
KINDS = (("asked_for", 1), ("once", 1), ("never_known", 0))


class Runner:
    """One :mod:`client.tool_runner` process."""

    def __init__(self, bootstrap: str, prefix: str, gateway: Path, *flags: str, **environment: str) -> None:
        kept = {name: value for name, value in os.environ.items() if not name.startswith("REFOLD_")}
        path = os.pathsep.join([str(TESTS), *([kept["PYTHONPATH"]] if "PYTHONPATH" in kept else [])])
        self.process = subprocess.Popen(
            [
                *(sys.executable, "-m", "client.tool_runner", "--bootstrap", bootstrap),
                *("--prefix", prefix, "--gateway", str(gateway), *flags),
            ],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**kept, "PYTHONPATH": path, **environment},
        )

    def ready(self) -> Runner:
        assert self.answer() == "ready"
        return self

    def tell(self, **command: Any) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps(command) + "\n")
        self.process.stdin.flush()

    def answer(self) -> Any:
        """The next answer; ``None`` when the process has ended."""
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        return json.loads(line) if line else None

    def wait_stopped(self) -> None:
        """Until the process has stopped itself."""
        deadline = time.monotonic() + ANSWER_S
        state = Path(f"/proc/{self.process.pid}/stat")
        while state.read_text().rsplit(")", 1)[1].split()[0] != "T":
            assert time.monotonic() < deadline, "the runner did not reach its point"
            assert self.process.poll() is None, "the runner ended"
            time.sleep(0.005)

    def wake(self) -> None:
        self.process.send_signal(signal.SIGCONT)

    def end(self) -> None:
        self.process.kill()
        self.process.wait(30)
        for stream in (self.process.stdin, self.process.stdout):
            if stream is not None:
                stream.close()


def play(
    bootstrap: str, prefix: str, directory: Path, rounds: int, *, lease: float = 0.5, no_lease: bool = False
) -> Counter[str]:
    """Counts: rounds, executed, executed_twice, lost, two_results."""
    gateway = FileGateway(directory, fenced=False)
    flags = ["--lease", str(lease), *(["--no-lease"] if no_lease else [])]
    zombie = Runner(bootstrap, prefix, directory, *flags)
    other = Runner(bootstrap, prefix, directory, *flags)
    counts: Counter[str] = Counter(rounds=0, executed=0, executed_twice=0, lost=0, two_results=0)
    try:
        zombie.ready()
        other.ready()
        for number in range(rounds):
            name, expected = KINDS[number % len(KINDS)]
            session, call = f"two-{uuid.uuid4().hex[:8]}", f"c{number}"
            zombie.tell(do="arm", point="before_effect:stop")
            assert zombie.answer() == "armed"
            zombie.tell(do="run", session=session, call=call, tool=name)
            zombie.wait_stopped()
            other.tell(do="run", session=session, call=call, tool=name)
            theirs = other.answer()
            zombie.wake()
            ours = zombie.answer()
            times = gateway.count(f"m1:{call}")
            counts["rounds"] += 1
            counts["executed"] += times
            counts["executed_twice"] += times > 1
            counts["lost"] += times < expected
            counts["two_results"] += ours != theirs
    finally:
        zombie.end()
        other.end()
    return counts


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=200)
    parser.add_argument("--no-lease", action="store_true", help="the control: must exit 1")
    options = parser.parse_args()
    from refold.broker import EmbeddedBroker

    with tempfile.TemporaryDirectory() as made:
        directory = Path(made)
        with EmbeddedBroker(directory / "kafka") as broker:
            refold(broker.bootstrap, "two", "topology", "apply", "--partitions", "4")
            with worker(broker.bootstrap, "two", directory, "w-0"):
                counts = play(broker.bootstrap, "two", directory, options.rounds, no_lease=options.no_lease)
    print(json.dumps(counts))
    return 1 if counts["executed_twice"] or counts["lost"] or counts["two_results"] else 0


if __name__ == "__main__":
    raise SystemExit(main())
