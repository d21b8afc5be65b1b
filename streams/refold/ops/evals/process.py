"""A run of a batch as a process: signals, drain, exit status.

The first SIGTERM or SIGINT drains: no further sample is begun, those that run may end within
``max_seconds``, their results are committed. A second one ends the process where it is; what is committed
stays, and the samples it was at are run again on resume.
"""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Final

from refold.ops.evals.limits import COMMIT_SECONDS_MAX
from refold.ops.evals.rules import Request
from refold.ops.evals.run import EXIT_INTERRUPTED, Ended, Options, Watcher, run_batch
from refold.ops.evals.runner import Runner
from refold.ops.evals.samples import SampleFile
from refold.ops.evals.sinks.sink import Sink

SIGNAL_BASE: Final = 128

#: A commit, the next sample, a result on its way to the blob store.
OWN_THREADS: Final = 4


async def run_process(
    request: Request,
    runner: Runner,
    file: SampleFile,
    sink: Sink,
    options: Options,
    watcher: Watcher,
    note: Callable[[str], None],
) -> Ended:
    """As :func:`run_batch`, under signals. Main thread only. Closes the sink."""
    loop = asyncio.get_running_loop()
    stop = asyncio.Event()
    # Runners use `asyncio.to_thread` too: commits must not wait behind them, nor they behind each other.
    loop.set_default_executor(ThreadPoolExecutor(options.concurrency + OWN_THREADS))

    def on_signal(number: int) -> None:
        if stop.is_set():
            os._exit(SIGNAL_BASE + number)
        stop.set()
        # Whatever holds the end up: a runner that does not let itself be cancelled, a broker that is away.
        loop.call_later(options.max_seconds + COMMIT_SECONDS_MAX, os._exit, EXIT_INTERRUPTED)
        note(f"stopping: what runs may end within {options.max_seconds:g} s; a second signal ends it at once")

    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, on_signal, number)
    try:
        return await run_batch(request, runner, file, sink, options, stop, watcher)
    finally:
        await sink.close()
