"""After SIGKILL or a power cut: withdraw the dead broker's leadership before the new one starts.

A restarted single node first believes the metadata log, in which its dead predecessor is still a live
leader. Two things follow, both seen with Kafka 4.4.0. Its registration is refused as a duplicate until the
old session is over (9 s by default). Worse, its transaction coordinator wakes up on the old leadership, and
when that is withdrawn in the middle it takes the partitions of a prepared transaction for deleted
("Couldn't find leader endpoint ... likely deleted already"), writes COMPLETE_COMMIT and never writes the
marker: an acknowledged commit stays invisible to read_committed readers for good. Measured: 5 of 8 kills
right after a commit, with the session at 3 s and at 9 s; none of 15 with the pass below. (The mechanism is
read off the broker's log, not off its source; a cluster of several nodes was not tried.)

So, only after an unclean stop, the controller runs alone for a moment with a session of 100 ms. It fences
the old broker on disk, and the real start finds nobody to take over from. Costs about a second.
"""

from __future__ import annotations

import re
import subprocess
import time
from collections.abc import Mapping
from typing import Final

from refold.broker.java import BROKER_MAIN, command
from refold.broker.layout import Layout
from refold.broker.process import Identity
from refold.broker.properties import NODE_ID, controller_only, render

#: Nobody sends heartbeats, so the old broker is fenced this long after the controller is active.
SESSION_MS: Final = 100
#: A broker that was fenced already (killed while it stopped or before it served) causes no fencing. The
#: controller checks every SESSION_MS / 8, but on a machine with more to do than it can it was once not there
#: within ten sessions: taken for fenced, the old broker held the place until the new one gave up.
ALREADY_FENCED_S: Final = 3.0
#: A controller is active in 0.6 s; far beyond that the real start will fail too, and say why.
PASS_S_MAX: Final = 30.0
POLL_S: Final = 0.02


def stopped_uncleanly(layout: Layout) -> bool:
    """Whether a broker worked on the data and did not finish. Kafka writes the marker file last."""
    used = (layout.data / "__cluster_metadata-0").exists()
    return used and not (layout.data / ".kafka_cleanshutdown").exists()


def fence_predecessor(layout: Layout, classpath: str, heap_mib: int, properties: Mapping[str, str]) -> None:
    """Run the controller alone until the old broker is fenced. Blocks 1 to 2 s, at most PASS_S_MAX."""
    file = layout.temporary / "controller.properties"
    file.write_text(render(controller_only(properties, session_ms=SESSION_MS)), encoding="ascii")
    file.chmod(0o600)
    java, *rest = command(layout, classpath, heap_mib, BROKER_MAIN, str(file))
    verbose = "-Dorg.slf4j.simpleLogger.log.org.apache.kafka.controller=info"
    start = layout.log.stat().st_size
    with layout.log.open("ab") as log:
        child = subprocess.Popen(
            [java, verbose, *rest],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    try:
        _wait_until_fenced(layout, start, child)
    finally:
        if child.poll() is None:
            Identity.of(child.pid).stop()
        child.wait()


def _wait_until_fenced(layout: Layout, start: int, child: subprocess.Popen[bytes]) -> None:
    fenced = re.compile(rf"Replayed BrokerRegistrationChangeRecord .*broker {NODE_ID}:.*\bfenced=1\b")
    activated = re.compile(r"Activated periodic tasks:")
    limit = time.monotonic() + PASS_S_MAX
    active_at: float | None = None
    while time.monotonic() < limit and child.poll() is None:
        with layout.log.open("rb") as log:
            log.seek(start)
            text = log.read().decode("utf-8", "replace")
        if match := activated.search(text):
            active_at = active_at or time.monotonic()
            # Only what follows the activation: before it, the log replays older fencings.
            if fenced.search(text, match.end()) or time.monotonic() - active_at > ALREADY_FENCED_S:
                return
        time.sleep(POLL_S)
