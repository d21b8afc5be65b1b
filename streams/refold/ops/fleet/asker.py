"""Who owns which partition, asked in a process of its own.

librdkafka ends the whole process (SIGABRT: "eonce->refcnt > 0", its issue 4605) when the group's coordinator
goes away under a request of the admin client. Where brokers are restarted on purpose that is a matter of
time, and a harness that dies of it leaves nothing judged. The child is started again when it has died, and
meanwhile the answer is "cannot say".

The child's protocol: the configuration as one line of JSON on stdin, then an empty line per question, and one
line of JSON back for each. It ends with its stdin.
"""

from __future__ import annotations

import contextlib
import json
import select
import subprocess
import sys
import threading
from collections.abc import Mapping
from typing import Any, Final

from confluent_kafka.admin import AdminClient

from refold.ops.fleet.group import DESCRIBE_S_MAX, owners

#: Imports, connections and one description.
ANSWER_S_MAX: Final = 2 * DESCRIBE_S_MAX
END_S_MAX: Final = 5.0


class GroupAsker:
    """Thread-safe; one question at a time. Close it."""

    def __init__(self, kafka: Mapping[str, Any], group: str, topic: str) -> None:
        self._setting = json.dumps({"kafka": dict(kafka), "group": group, "topic": topic})
        self._child: subprocess.Popen[str] | None = None
        self._lock = threading.Lock()
        self.deaths = 0

    def owners(self) -> Mapping[int, str]:
        """partition -> instance name. Empty while the coordinator cannot say. Blocks up to 20 s."""
        with self._lock:
            child = self._child or self._start()
            try:
                line = self._ask(child)
            except OSError:
                line = ""
            if not line:
                self.deaths += 1
                self._end()
                return {}
            return {int(partition): name for partition, name in json.loads(line).items()}

    def close(self) -> None:
        with self._lock:
            self._end()

    def _start(self) -> subprocess.Popen[str]:
        child = subprocess.Popen(
            [sys.executable, "-m", "refold.ops.fleet.asker"],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True,
        )  # fmt: skip
        self._child = child
        if child.stdin is not None:
            with contextlib.suppress(OSError):  # it died at once: seen by the question
                child.stdin.write(self._setting + "\n")
                child.stdin.flush()
        return child

    def _ask(self, child: subprocess.Popen[str]) -> str:
        if child.stdin is None or child.stdout is None:
            return ""
        child.stdin.write("\n")
        child.stdin.flush()
        ready, _, _ = select.select([child.stdout], [], [], ANSWER_S_MAX)
        return child.stdout.readline() if ready else ""

    def _end(self) -> None:
        child, self._child = self._child, None
        if child is None:
            return
        with contextlib.suppress(OSError):
            if child.stdin is not None:
                child.stdin.close()
        try:
            child.wait(END_S_MAX)
        except subprocess.TimeoutExpired:
            child.kill()
            child.wait()
        if child.stdout is not None:
            child.stdout.close()


def _main() -> None:
    setting = json.loads(sys.stdin.readline())
    admin = AdminClient(setting["kafka"])
    for _ in sys.stdin:
        found = owners(admin, setting["group"], setting["topic"])
        if not found:
            # It may never get through to a coordinator again that was away (refold.topology.lasting).
            admin = AdminClient(setting["kafka"])
        print(json.dumps(dict(found)), flush=True)


if __name__ == "__main__":
    _main()
