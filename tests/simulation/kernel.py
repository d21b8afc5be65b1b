"""Virtual time, simulated processes and their threads, one of which runs at a time.

The engine's code blocks (librdkafka calls block), so each of its threads is a real thread here; but a thread
only runs while it holds the baton, and it hands the baton back at every simulated call. Who gets it next is
drawn from the schedule PRNG. Nothing runs in parallel, so a run is a function of its seeds.

- A *stopped* process (SIGSTOP) keeps its threads where they are until it is continued.
- A *killed* process's threads get :class:`Killed` where they are, one after the other; while they unwind,
  every simulated call raises it again, so that no clean-up of a dead process has an effect.
- Time only moves between steps: one step is :data:`STEP_US`, and when nobody can run it jumps to the next
  timer.
"""

from __future__ import annotations

import enum
import heapq
import random
import threading
from collections.abc import Callable
from hashlib import sha256
from typing import Any, Final

#: Virtual cost of one step. A local round trip to a broker is of this order.
STEP_US: Final = 500

#: Virtual epoch: 2023-11-14T22:13:20Z, so that times look like times.
EPOCH_MS: Final = 1_700_000_000_000

#: Steps that threads take among themselves before the main loop looks at the world again.
HOPS_MAX: Final = 16

#: A thread that does not hand back the baton for this long (real time) is a hang of the harness or the
#: engine.
HANG_S: Final = 60.0


class Killed(BaseException):
    """The simulated process is dead. Not an Exception: no handler of the engine may swallow it."""


class Hang(AssertionError):
    """A simulated thread blocked for real."""


class Life(enum.Enum):
    RUNNING = "running"
    STOPPED = "stopped"
    DEAD = "dead"


class Process:
    def __init__(self, name: str) -> None:
        self.name = name
        self.life = Life.RUNNING
        self.stopped_at_us = 0
        #: No packet goes between it and the cluster.
        self.cut = False
        #: Runs the release before this one.
        self.old_build = False
        self.exit: BaseException | None = None

    @property
    def running(self) -> bool:
        return self.life is Life.RUNNING

    @property
    def dead(self) -> bool:
        return self.life is Life.DEAD

    def __repr__(self) -> str:
        return f"{self.name}({self.life.value})"


class _Carrier:
    """An operating system thread that carries one fiber after the other."""

    def __init__(self) -> None:
        self.go = threading.Lock()
        self.go.acquire()
        self.job: Callable[[], None] | None = None
        threading.Thread(target=self._run, daemon=True, name="sim-fiber").start()

    def _run(self) -> None:
        while True:
            self.go.acquire()
            job = self.job
            if job is None:
                return
            job()


#: Idle carriers, reused from run to run: starting a thread costs more than a simulated commit.
_idle: Final[list[_Carrier]] = []


class Fiber:
    """A simulated thread."""

    __slots__ = ("carrier", "done", "error", "killed", "name", "predicate", "process", "wake_us")

    def __init__(self, process: Process, name: str) -> None:
        self.process = process
        self.name = name
        self.carrier: _Carrier | None = None
        self.done = False
        self.killed = False
        self.error: BaseException | None = None
        #: Runnable when the predicate holds or the time has come; ``None``: no such condition.
        self.wake_us: int | None = None
        self.predicate: Callable[[], bool] | None = None


class Kernel:
    """The scheduler. ``trace`` is fed by everything that happens; its digest names the run."""

    def __init__(self, schedule: random.Random) -> None:
        self.now_us = 0
        self.steps = 0
        self.chance = schedule
        self.current: Fiber | None = None
        self.fibers: list[Fiber] = []
        self._timers: list[tuple[int, int, Process | None, Callable[[], None]]] = []
        self._deferred: list[tuple[Process, Callable[[], None]]] = []
        self._timer_count = 0
        self._main = threading.Lock()
        self._main.acquire()
        self._last: Fiber | None = None
        #: A process died and its threads may not be unwound yet.
        self._died = False
        self._hops_left = 0
        #: Folds are cut into slices at any place; off: only where the time is really over.
        self.slices = True
        self._digest = sha256()
        self.lines: list[str] | None = None
        self.errors: list[tuple[Fiber, BaseException]] = []

    # --- time and trace ------------------------------------------------------------------------------

    @property
    def now_ms(self) -> int:
        return EPOCH_MS + self.now_us // 1000

    def monotonic(self) -> float:
        return self.now_us / 1_000_000

    def trace(self, who: str, what: str) -> None:
        line = f"{self.now_us:>10} {who:<10} {what}\n"
        self._digest.update(line.encode())
        if self.lines is not None:
            self.lines.append(line)

    @property
    def digest(self) -> str:
        return self._digest.hexdigest()

    # --- threads -------------------------------------------------------------------------------------

    def spawn(self, process: Process, name: str, body: Callable[[], Any]) -> Fiber:
        fiber = Fiber(process, name)
        carrier = _idle.pop() if _idle else _Carrier()
        fiber.carrier = carrier

        def job() -> None:
            try:
                if not fiber.killed:
                    body()
            except Killed:
                pass
            except BaseException as error:
                # What the dead say while they unwind is not heard.
                fiber.error = None if fiber.killed or fiber.process.dead else error
            fiber.done = True
            self._last = fiber
            self._main.release()

        carrier.job = job
        self.fibers.append(fiber)
        return fiber

    def _switch(self, fiber: Fiber) -> None:
        """Main loop: give the baton away until it comes back."""
        before, self.current = self.current, fiber
        self._hops_left = HOPS_MAX
        carrier = fiber.carrier
        assert carrier is not None
        carrier.go.release()
        if not self._main.acquire(timeout=HANG_S):
            stuck = self.current
            raise Hang(f"{stuck.process.name}/{stuck.name} blocks for real; its wait is not simulated")
        self.current = before
        last = self._last
        if last is not None and last.done:
            self.fibers.remove(last)
            assert last.carrier is not None
            last.carrier.job = None
            _idle.append(last.carrier)
            last.carrier = None
            if last.error is not None:
                self.errors.append((last, last.error))
        self._last = None

    def _yield(self) -> None:
        """A thread hands the baton on: to the next thread directly where nothing else is due, else to the
        main loop (a wake-up of an operating system thread is what a step costs)."""
        fiber = self.current
        assert fiber is not None
        assert fiber.carrier is not None
        following = self._next_directly(fiber)
        if following is not fiber:
            if following is None:
                self._last = fiber
                self._main.release()
            else:
                self.current = following
                assert following.carrier is not None
                following.carrier.go.release()
            fiber.carrier.go.acquire()
        fiber.wake_us = fiber.predicate = None
        if fiber.killed:
            raise Killed

    def _next_directly(self, fiber: Fiber) -> Fiber | None:
        if self._hops_left <= 0 or fiber.killed or not fiber.process.running:
            return None
        if self._timers and self._timers[0][0] <= self.now_us + STEP_US:
            return None
        ready = self.runnable()
        if not ready:
            return None
        self._hops_left -= 1
        self.steps += 1
        self.now_us += STEP_US
        return self._choose(ready)

    def _choose(self, ready: list[Fiber]) -> Fiber:
        return ready[0] if len(ready) == 1 else ready[self.chance.randrange(len(ready))]

    def alive(self) -> None:
        """Every simulated call begins with it: the dead do nothing."""
        fiber = self.current
        if fiber is not None and (fiber.killed or fiber.process.dead):
            raise Killed

    def pause(self) -> None:
        """Hand back the baton; go on at some later step. Outside of a simulated thread: nothing."""
        self.alive()
        if self.current is not None:
            self._yield()

    @property
    def caller(self) -> Process | None:
        """Whose thread holds the baton."""
        return None if self.current is None else self.current.process

    def linked(self, process: Process | None, timeout_s: float) -> bool:
        """A request leaves for the cluster: True as soon as there is a way, False when none comes in time."""
        if process is None or not process.cut:
            return True
        wait_us = None if timeout_s < 0 else int(timeout_s * 1_000_000)
        return self.wait(lambda: not process.cut, wait_us)

    def sleep(self, seconds: float) -> None:
        self.wait(None, int(seconds * 1_000_000))

    def wait(self, predicate: Callable[[], bool] | None, timeout_us: int | None = None) -> bool:
        """Until the predicate holds (True) or the time is over (False). Outside of a simulated thread the
        world is stepped meanwhile."""
        self.alive()
        end = None if timeout_us is None else self.now_us + timeout_us
        fiber = self.current
        while True:
            if predicate is not None and predicate():
                return True
            if end is not None and self.now_us >= end:
                return False
            if fiber is None:
                if not self.step(end):
                    if end is None:
                        raise Hang("nothing is left that could make the awaited condition true")
                    self.now_us = max(self.now_us, end)
            else:
                fiber.wake_us, fiber.predicate = end, predicate
                self._yield()

    # --- timers --------------------------------------------------------------------------------------

    def after(self, delay_us: int, action: Callable[[], None], process: Process | None = None) -> None:
        """Run ``action`` later, on nobody's thread. With a process: as its background thread, so not while it
        is stopped (then: when it is continued) and never after its death."""
        self._timer_count += 1
        heapq.heappush(self._timers, (self.now_us + delay_us, self._timer_count, process, action))

    def _fire(self) -> bool:
        fired = False
        while self._timers and self._timers[0][0] <= self.now_us:
            _, _, process, action = heapq.heappop(self._timers)
            if process is not None and process.dead:
                continue
            if process is not None and not process.running:
                self._deferred.append((process, action))
                continue
            action()
            fired = True
        return fired

    # --- processes -----------------------------------------------------------------------------------

    def stop(self, process: Process) -> None:
        process.life = Life.STOPPED
        process.stopped_at_us = self.now_us

    def resume(self, process: Process) -> None:
        if process.life is not Life.STOPPED:
            return
        process.life = Life.RUNNING
        waiting, self._deferred = self._deferred, []
        for owner, action in waiting:
            if owner is process:
                self.after(0, action, owner)
            else:
                self._deferred.append((owner, action))

    def kill(self, process: Process) -> None:
        """SIGKILL. Called from one of its own threads it does not return."""
        process.life = Life.DEAD
        self._died = True
        self._deferred = [item for item in self._deferred if item[0] is not process]
        if self.current is not None and self.current.process is process:
            # The other threads are unwound by the next step: only the holder of the baton can give it away.
            raise Killed
        self._reap()

    def _reap(self) -> None:
        if not self._died:
            return
        self._died = False
        for fiber in list(self.fibers):
            if fiber.process.dead and not fiber.killed:
                fiber.killed = True
                while not fiber.done:
                    self._switch(fiber)

    def shutdown(self) -> None:
        """Unwind every thread, so that the carriers can be used again."""
        for fiber in self.fibers:
            fiber.process.life = Life.DEAD
        self._died = True
        self._reap()

    # --- the loop ------------------------------------------------------------------------------------

    def runnable(self) -> list[Fiber]:
        now, running = self.now_us, Life.RUNNING
        return [
            fiber
            for fiber in self.fibers
            if fiber.process.life is running
            and (
                (fiber.wake_us is None and fiber.predicate is None)
                or (fiber.wake_us is not None and fiber.wake_us <= now)
                or (fiber.predicate is not None and fiber.predicate())
            )
        ]

    def step(self, end_us: int | None = None) -> bool:
        """One step: due timers, then one thread. False when nothing can happen (before ``end_us``)."""
        if self.current is not None:
            raise Hang("only the main loop may step the world")
        self._reap()
        self.steps += 1
        self.now_us += STEP_US
        self._fire()
        ready = self.runnable()
        if ready:
            self._switch(self._choose(ready))
            self._reap()
            return True
        moments = [
            fiber.wake_us for fiber in self.fibers if fiber.process.running and fiber.wake_us is not None
        ]
        if self._timers:
            moments.append(self._timers[0][0])
        if not moments:
            return False
        soonest = min(moments)
        if end_us is not None and soonest > end_us:
            return False
        self.now_us = max(self.now_us, soonest - STEP_US)
        return True
