"""One connection to one broker: requests out, answers back in the same order."""

from __future__ import annotations

import socket
import ssl
import struct
import time
from typing import Final

from refold.engine.producer.requests import API_VERSIONS, Api, api_versions
from refold.engine.producer.security import Security
from refold.engine.producer.tls import explain
from refold.engine.producer.wire import Reader, Writer
from refold.errors import UnavailableError

#: An answer larger than this is no answer: metadata of 10 000 partitions is 400 KB.
ANSWER_BYTES_MAX: Final = 64 * 1024 * 1024

#: SaslHandshake v1 and SaslAuthenticate v1 have the first header.
_SASL_KEYS: Final = (17, 36)

_LENGTH: Final = struct.Struct(">i")


class Disconnected(Exception):
    """The connection is gone, or what it brings can no longer be told apart. What became of the requests
    under way is not known."""


class Connection:
    """Blocks; use from one thread at a time. Anything that fails closes it."""

    def __init__(self, security: Security, host: str, port: int, client_id: str, timeout_s: float) -> None:
        """Raises Disconnected where nobody answers in time, and for what waiting does not cure
        PermissionDenied and ConfigError."""
        self._host, self._port = host, port
        self._client_id = client_id
        self._correlation = 0
        self._awaited = 0
        deadline = time.monotonic() + timeout_s
        try:
            self._socket = security.connect(host, port, timeout_s)
        except UnavailableError as error:
            raise Disconnected(str(error)) from None
        try:
            lifetime = security.authenticate(
                lambda key, version, body: self.ask(Api(key, version), body, deadline).rest()
            )
        except UnavailableError as error:
            self.close()
            raise Disconnected(str(error)) from None
        except BaseException:
            self.close()
            raise
        #: When the broker will want credentials again, monotonic seconds: by then it is made anew.
        self.ends = time.monotonic() + lifetime if lifetime else float("inf")

    @property
    def open(self) -> bool:
        return self._socket.fileno() >= 0

    def versions(self, deadline: float) -> dict[int, tuple[int, int]]:
        """Lowest and highest version by key that the broker takes."""
        return dict(api_versions(self.ask(API_VERSIONS, b"", deadline)))

    def ask(self, api: Api, body: bytes, deadline: float) -> Reader:
        self.send(api, body, deadline)
        return self.receive(api, deadline)

    def send(self, api: Api, body: bytes, deadline: float) -> None:
        """``deadline``: monotonic seconds."""
        self._correlation = (self._correlation + 1) & 0x7FFFFFFF
        head = Writer().i16(api.key).i16(api.version).i32(self._correlation).string(self._client_id)
        if api.flexible:
            head.tags()
        self._awaited += 1
        try:
            self._socket.settimeout(_left(deadline))
            # Added up and not joined: a body with credentials stays one that hides itself.
            self._socket.sendall(_LENGTH.pack(len(head.out) + len(body)) + bytes(head.out) + body)
        except OSError as error:
            raise self._broken(error) from None

    def receive(self, api: Api, deadline: float) -> Reader:
        """The answer to the oldest request that has none yet."""
        wanted = (self._correlation - self._awaited + 1) & 0x7FFFFFFF
        try:
            size: int = _LENGTH.unpack(self._exactly(4, deadline))[0]
            if not 4 <= size <= ANSWER_BYTES_MAX:
                raise OSError(f"an answer of {size} bytes")
            read = Reader(self._exactly(size, deadline))
        except OSError as error:
            raise self._broken(error) from None
        self._awaited -= 1
        if read.i32() != wanted:
            raise self._broken(OSError("an answer to another request"))
        if api.flexible:
            try:
                read.tags()
            except IndexError as error:
                raise self._broken(OSError(str(error))) from None
        return read

    def close(self) -> None:
        self._socket.close()

    def _broken(self, error: OSError) -> Exception:
        """With TLS 1.3 the first read may tell that the broker does not accept our certificate."""
        self.close()
        if isinstance(error, ssl.SSLError):
            told = explain(error, self._host, self._port)
            if not isinstance(told, UnavailableError):
                return told
        return Disconnected(f"{self._host}:{self._port}: {error}")

    def _exactly(self, size: int, deadline: float) -> bytes:
        parts: list[bytes] = []
        while size > 0:
            self._socket.settimeout(_left(deadline))
            part = self._socket.recv(min(size, 1 << 20))
            if not part:
                raise OSError("closed by the broker")
            parts.append(part)
            size -= len(part)
        return parts[0] if len(parts) == 1 else b"".join(parts)


def _left(deadline: float) -> float:
    left = deadline - time.monotonic()
    if left <= 0:
        raise socket.timeout("timed out")  # noqa: UP041 - what a socket raises
    return left
