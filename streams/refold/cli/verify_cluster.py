"""What the commands of ``refold verify`` share: where a run takes place, how long silent workers live."""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Final

import typer

from refold.cli.options import settings_for
from refold.cli.output import Output

EXIT_DIFFERENCE: Final = 1
#: Kafka's own lower bound for session time-outs is 6 s; the embedded broker allows less.
SESSION_TIMEOUT_MS_CLUSTER: Final = 6_000
SESSION_TIMEOUT_MS_EMBEDDED: Final = 3_000
#: With a sabotage a restart must keep its partitions, however slow the machine: its own disk is the witness.
SESSION_TIMEOUT_MS_SABOTAGE: Final = 15_000

SessionTimeoutOption = Annotated[
    int | None,
    typer.Option(help="How long until a silent worker is given up. Default: 3 s embedded, 6 s on a cluster."),
]
KeepOption = Annotated[bool, typer.Option("--keep", help="Leave topics, data and logs for inspection.")]


def default_timeout_ms(embedded: bool) -> int:
    """The default of :data:`SessionTimeoutOption`."""
    return SESSION_TIMEOUT_MS_EMBEDDED if embedded else SESSION_TIMEOUT_MS_CLUSTER


def is_theirs(bootstrap: str | None) -> bool:
    """Did the user name a cluster, by flag, environment or file?"""
    return bootstrap is not None or settings_for().source("kafka.bootstrap") != "default"


@contextlib.contextmanager
def cluster(bootstrap: str | None, out: Output) -> Iterator[tuple[str | None, bool]]:
    """The user's cluster, or an embedded broker for the length of the run: its address (``None``: what the
    settings say), and whether it is embedded."""
    if is_theirs(bootstrap):
        yield bootstrap, False
        return
    from refold.broker import EmbeddedBroker

    with tempfile.TemporaryDirectory(prefix="refold-verify-kafka-") as directory:
        out.note("no --bootstrap: starting a Kafka for this run")
        with EmbeddedBroker(Path(directory)) as broker:
            yield broker.bootstrap, True
