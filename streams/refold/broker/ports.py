"""Loopback ports: chosen, checked, and named in an error when somebody else has one."""

from __future__ import annotations

import random
import socket
from dataclasses import dataclass
from typing import Final

import psutil

from refold.errors import UnavailableError, UsageError

LOOPBACK: Final = "127.0.0.1"

#: Chosen ports come from below both ephemeral ranges (Linux 32768-60999, macOS 49152-65535): between our
#: check and the broker's bind a second passes, and an outgoing connection must not take the port then.
CHOSEN_PORT_MIN: Final = 20_000
CHOSEN_PORT_MAX: Final = 31_999
#: With half of the 12 000 ports taken the chance that 50 draws fail is below 1e-15.
DRAWS_MAX: Final = 50


class PortInUse(UnavailableError):
    """Somebody else listens there."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ports:
    client: int
    controller: int
    internal: int  # same as client unless the client listener asks for credentials


def is_free(port: int) -> bool:
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        # As the JVM does: a port in TIME_WAIT (a broker that just stopped) is free.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((LOOPBACK, port))
            probe.listen(1)
        except OSError:
            return False
    return True


def answers(port: int) -> bool:
    try:
        with socket.create_connection((LOOPBACK, port), timeout=0.5):
            return True
    except OSError:
        return False


def require_free(port: int) -> None:
    """Raises UsageError for an impossible number, PortInUse with the holder when it is taken."""
    if not 1 <= port <= 65_535:
        raise UsageError(f"port {port} does not exist. Give one between 1024 and 65535, or none.")
    if not is_free(port):
        raise PortInUse(
            f"port {port} on {LOOPBACK} cannot be used: {_holder(port)}. "
            "Stop that process, give another --port, or leave --port away to get a free one."
        )


def choose(previous: int | None = None, *, taken: frozenset[int] = frozenset()) -> int:
    """``previous`` when it is still free (addresses stay stable over down and up), else a random one."""
    if previous is not None and previous not in taken and is_free(previous):
        return previous
    for _ in range(DRAWS_MAX):
        port = random.randint(CHOSEN_PORT_MIN, CHOSEN_PORT_MAX)
        if port not in taken and is_free(port):
            return port
    raise PortInUse(
        f"no free port found between {CHOSEN_PORT_MIN} and {CHOSEN_PORT_MAX} on {LOOPBACK}. Give --port."
    )


def _holder(port: int) -> str:
    try:
        for connection in psutil.net_connections("tcp"):
            listens = connection.status == psutil.CONN_LISTEN and connection.pid
            if listens and getattr(connection.laddr, "port", None) == port:
                return f"{psutil.Process(connection.pid).name()} (pid {connection.pid}) listens there"
    except (psutil.Error, OSError):
        pass  # macOS shows other users' sockets to root only
    return "another process listens there" if answers(port) else "the system refuses to bind it"
