"""TCP to a broker: every address of its name is tried, requests leave at once, dead ends are noticed."""

from __future__ import annotations

import socket
import time
from dataclasses import dataclass
from typing import Final

#: Seconds without a word after which the kernel asks whether the other end is still there. Load balancers
#: forget idle connections after 240 s and more; the kernel's own two hours come too late.
KEEPALIVE_IDLE_S: Final = 60
#: A limit of 0 s would mean "do not block": what is late already gets this.
WAIT_S_MIN: Final = 0.001


def left(until: float) -> float:
    """Seconds until ``until`` (monotonic), as a time limit for a socket."""
    return max(until - time.monotonic(), WAIT_S_MIN)


@dataclass(frozen=True, kw_only=True)
class Tcp:
    """Buffers of 0 bytes: as the system has them."""

    family: socket.AddressFamily = socket.AF_UNSPEC
    send_buffer_bytes: int = 0
    receive_buffer_bytes: int = 0

    def connect(self, host: str, port: int, until: float) -> socket.socket:
        """Blocks until ``until`` (monotonic) at most, and as long as the name server takes, which cannot be
        given a limit. Each address has its share of the time. Raises OSError: the last one's; ValueError
        for a name that can be none."""
        found = socket.getaddrinfo(host, port, self.family, socket.SOCK_STREAM)
        failed = OSError("the name has no address")
        for tried, (family, kind, protocol, _, address) in enumerate(found):
            try:
                connection = socket.socket(family, kind, protocol)
            except OSError as error:  # a family that this machine does not speak
                failed = error
                continue
            try:
                connection.settimeout(left(until) / (len(found) - tried))
                self._tune(connection)
                connection.connect(address)
                return connection
            except BaseException as error:
                connection.close()
                if not isinstance(error, OSError):
                    raise
                failed = error
        raise failed

    def _tune(self, connection: socket.socket) -> None:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        if (idle := getattr(socket, "TCP_KEEPIDLE", None)) is not None:  # not on every system
            connection.setsockopt(socket.IPPROTO_TCP, idle, KEEPALIVE_IDLE_S)
        if self.send_buffer_bytes:
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, self.send_buffer_bytes)
        if self.receive_buffer_bytes:
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, self.receive_buffer_bytes)
