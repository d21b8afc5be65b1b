"""A run of a batch as a process: signals, drain, exit status.

The first SIGTERM or SIGINT drains: no further sample is begun, those that run may end within
``max_seconds``, their results are committed. A second one ends the process where it is; what is committed
stays, and the samples it was at are run again on resume.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Final

from refold.draining import drain_on_signal
from refold.ops.evals.limits import COMMIT_SECONDS_MAX
from refold.ops.evals.rules import Request
from refold.ops.evals.run import Ended, Options, Watcher, run_batch
from refold.ops.evals.runner import Runner
from refold.ops.evals.samples import SampleFile
from refold.ops.evals.sinks.sink import Sink

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
    drain_on_signal(
        stop,
        options.max_seconds + COMMIT_SECONDS_MAX,
        lambda: note(
            f"stopping: what runs may end within {options.max_seconds:g} s; a second signal ends it at once"
        ),
    )
    try:
        return await run_batch(request, runner, file, sink, options, stop, watcher)
    finally:
        await sink.close()
