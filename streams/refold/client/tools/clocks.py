"""The clock a lease is measured by: it must go on while the process is stopped and while the machine sleeps.

``time.monotonic`` goes on under SIGSTOP but stands still while a machine or its virtual machine is suspended;
the broker's clock does not. Where the system has a clock that counts such times too, it is used.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final


def _boot_time() -> Callable[[], float]:
    number = getattr(time, "CLOCK_BOOTTIME", None)
    if number is None:
        return time.monotonic
    return lambda: time.clock_gettime(number)


#: Seconds from an arbitrary start; never goes back.
lease_clock: Final[Callable[[], float]] = _boot_time()
