"""The user's function: found by name, called with a sample and its context, its outcome as data.

A plain function runs in a thread of its own, an ``async def`` on the event loop. Such a thread never keeps
the process from ending: an attempt that is given up has no outcome, and is repeated with its own key.
Whatever it raises is the sample's outcome, never this process's end.
"""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import json
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from refold.errors import InvalidRecord, UsageError
from refold.ops.evals.jsonvalue import canonical
from refold.ops.evals.limits import ERROR_CHARS_MAX, ERROR_CODE_CHARS_MAX, PARAMS_BYTES_MAX
from refold.ops.targets import find_target

Runner = Callable[..., Any]


@dataclass(frozen=True, slots=True)
class EvalContext:
    """What a runner gets beside its sample.

    ``attempt`` begins with 1 and rises when the outcome of the one before is known and committed, so
    ``idempotency_key`` (``batch/sample/attempt``) is the same whenever it is not known whether an attempt had
    effects: an attempt that died with its process is repeated with its own key.
    """

    batch: str
    sample_id: str
    position: int
    attempt: int
    params: dict[str, Any]

    @property
    def idempotency_key(self) -> str:
        return f"{self.batch}/{self.sample_id}/{self.attempt}"


@dataclass(frozen=True, slots=True)
class Outcome:
    """``value``: canonical JSON, or None with ``error_code`` and ``error``. ``retryable`` is the error's own
    attribute of that name, true where it has none."""

    value: bytes | None
    started_ms: int
    finished_ms: int
    latency_ms: int
    error_code: str | None = None
    error: str | None = None
    retryable: bool = True


def find_runner(target: str) -> Runner:
    """``module:function``. Raises UsageError for what is none; what the module raises is its own."""
    module_name, name, _, found = find_target(target, "MODULE:FUNCTION", "myapp.evals:grade")
    if not callable(found):
        raise UsageError(f"{module_name} has no function {name!r}.")
    try:
        inspect.signature(found).bind({}, None)
    except TypeError as error:
        raise UsageError(f"{target} is called with a sample and a context: {error}.") from None
    except ValueError:
        pass  # some built-ins have no signature to look at
    runner: Runner = found
    return runner


def is_async(runner: Runner) -> bool:
    call = getattr(runner, "__call__", None)  # noqa: B004 - an object with an async __call__ is one too
    return inspect.iscoroutinefunction(runner) or inspect.iscoroutinefunction(call)


async def call(runner: Runner, sample: dict[str, Any], context: EvalContext) -> Outcome:
    """One attempt. Raises nothing but CancelledError."""
    started_ms, begun = now_ms(), time.monotonic()
    try:
        if is_async(runner):
            value = await runner(sample, context)
        else:
            value, raised = await _in_thread(runner, sample, context)
            if raised is not None:
                raise raised
            if inspect.isawaitable(value):
                value = await value
        text: bytes | None = canonical(value)
        failure: BaseException | None = None
    except asyncio.CancelledError as error:
        task = asyncio.current_task()
        if task is not None and task.cancelling():
            raise
        text, failure = None, error  # the runner cancelled something of its own
    except (Exception, SystemExit, GeneratorExit) as error:
        text, failure = None, error
    latency_ms = round((time.monotonic() - begun) * 1000)
    if failure is None:
        return Outcome(text, started_ms, now_ms(), latency_ms)
    return Outcome(
        None,
        started_ms,
        now_ms(),
        latency_ms,
        error_code=code_of(failure),
        error=clean(str(failure), ERROR_CHARS_MAX),
        retryable=bool(getattr(failure, "retryable", True)),
    )


async def _in_thread(
    runner: Runner, sample: dict[str, Any], context: EvalContext
) -> tuple[Any, BaseException | None]:
    """What it returned, or raised: as a value, because a future takes no StopIteration."""
    loop = asyncio.get_running_loop()
    future: asyncio.Future[tuple[Any, BaseException | None]] = loop.create_future()

    def tell(said: tuple[Any, BaseException | None]) -> None:
        if not future.done():
            future.set_result(said)

    def run() -> None:
        said: tuple[Any, BaseException | None]
        try:
            said = (runner(sample, context), None)
        except BaseException as error:
            said = (None, error)
        with contextlib.suppress(RuntimeError):  # the loop is closed: nobody waits any more
            loop.call_soon_threadsafe(tell, said)

    threading.Thread(target=run, name=f"refold-eval-{context.position}", daemon=True).start()
    return await future


def code_of(error: BaseException) -> str:
    """The error's own ``code`` where that is a text, else its class."""
    code = error.code if isinstance(error, InvalidRecord) else getattr(error, "code", None)
    name = code if isinstance(code, str) and code else type(error).__name__
    return clean(name, ERROR_CODE_CHARS_MAX)


def clean(text: str, chars_max: int) -> str:
    """What every store takes: no NUL, no half of a surrogate pair, not longer than said."""
    kept = text.replace("\0", "\\0").encode("utf-8", "backslashreplace").decode()
    return kept if len(kept) <= chars_max else kept[: chars_max - 1] + "…"


def parse_params(text: str | None) -> str | None:
    """``--params`` as canonical JSON, None where not given. Raises UsageError."""
    if text is None:
        return None
    try:
        value = json.loads(text)
        if not isinstance(value, dict):
            raise UsageError("--params is a JSON object, as in '{\"temperature\": 0}'.")
        params = canonical(value)
    except (ValueError, RecursionError) as error:
        raise UsageError(f"--params is no JSON ({error}).") from None
    except InvalidRecord as error:
        raise UsageError(f"--params: {error.reason}.") from None
    if len(params) > PARAMS_BYTES_MAX:
        raise UsageError(
            f"--params has {len(params)} bytes, at most {PARAMS_BYTES_MAX}: refer to large parts."
        )
    return params.decode()


def now_ms() -> int:
    return time.time_ns() // 1_000_000
