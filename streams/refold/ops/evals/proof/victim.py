"""``refold eval run`` in a process that may die at a point of a commit, or with a rule taken away.

``python -m refold.ops.evals.proof.victim [--die-at POINT:N] [--sabotage RULE] -- eval run …``: the command
itself, by its own command line; it kills itself when it passes the point for the N-th time.
"""

from __future__ import annotations

import argparse
import os
import signal
from collections import Counter

from refold.cli.main import main
from refold.ops.evals import points


def dying_at(point: str, count: int) -> None:
    passed: Counter[str] = Counter()

    def hook(reached: str) -> None:
        passed[reached] += 1
        if reached == point and passed[reached] == count:
            os.kill(os.getpid(), signal.SIGKILL)

    points.set_up(hook, None)


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--die-at", default=None)
    parser.add_argument("--sabotage", default=None)
    parser.add_argument("command", nargs="+")
    given = parser.parse_args()
    if given.die_at is not None:
        name, _, number = given.die_at.partition(":")
        dying_at(name, int(number))
    if given.sabotage is not None:
        points.set_up(points._hook, given.sabotage)
    main(given.command)
