"""One connection to one broker: requests out, answers back in the same order.

The commit thread shares the interpreter with an event loop that may hold it for
``sys.getswitchinterval()`` each time it is given up, so it is given up as seldom as can be: once to send a
request and, as a rule, once to receive its answer. A socket with a Python time limit gives it up three times
a call (the switch to non-blocking, the wait, the call); so the limit of a plain one is the kernel's.
"""

from __future__ import annotations

import contextlib
import socket
import ssl
import struct
import time
from typing import Final

from refold import __version__
from refold.errors import UnavailableError
from refold.protocol.requests import API_VERSIONS, Api, Offered, api_versions, read_api_versions
from refold.protocol.security import Security
from refold.protocol.tls import explain
from refold.protocol.wire import Reader, Writer

#: An answer larger than this is no answer: metadata of 10 000 partitions is 400 KB.
ANSWER_BYTES_MAX: Final = 64 * 1024 * 1024

#: SaslHandshake v1 and SaslAuthenticate v1 have the first header.
_SASL_KEYS: Final = (17, 36)

#: Taken at once from the kernel: an answer to a commit's requests has 30 to 1 000 bytes.
RECEIVE_BYTES: Final = 64 * 1024

#: Smallest limit that the kernel is given: 0 would mean none.
LIMIT_US_MIN: Final = 1_000

_LENGTH: Final = struct.Struct(">i")
#: ``struct timeval``.
_LIMIT: Final = struct.Struct("@ll")


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
        self._came = bytearray()
        deadline = time.monotonic() + timeout_s
        try:
            self._socket = security.connect(host, port, timeout_s)
        except UnavailableError as error:
            raise Disconnected(str(error)) from None
        #: Blocking, with the kernel's limits. What TLS reads may be a part of what the kernel has.
        self._plain = type(self._socket) is socket.socket
        if self._plain:
            self._socket.settimeout(None)
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

    def offered(self, deadline: float) -> Offered:
        return read_api_versions(self.ask(API_VERSIONS, api_versions(__version__), deadline))

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
            self._limit(socket.SO_SNDTIMEO, deadline)
            # Added up and not joined: a body with credentials stays one that hides itself.
            self._socket.sendall(_LENGTH.pack(len(head.out) + len(body)) + bytes(head.out) + body)
        except OSError as error:
            raise self._broken(error) from None

    def receive(self, api: Api, deadline: float) -> Reader:
        """The answer to the oldest request that has none yet."""
        wanted = (self._correlation - self._awaited + 1) & 0x7FFFFFFF
        try:
            read = Reader(self._answer(deadline))
        except OSError as error:
            raise self._broken(error) from None
        self._awaited -= 1
        if read.i32() != wanted:
            raise self._broken(OSError("an answer to another request"))
        if api.flexible and api.answer_tagged:
            try:
                read.tags()
            except IndexError as error:
                raise self._broken(OSError(str(error))) from None
        return read

    def close(self) -> None:
        self._socket.close()

    def interrupt(self) -> None:
        """From another thread: what waits on the connection hears that it is gone."""
        # The plain socket's: that of a TLS socket takes the encryption away first, under the other thread.
        with contextlib.suppress(OSError):
            socket.socket.shutdown(self._socket, socket.SHUT_RDWR)

    def _broken(self, error: OSError) -> Exception:
        """With TLS 1.3 the first read may tell that the broker does not accept our certificate."""
        self.close()
        if isinstance(error, ssl.SSLError):
            told = explain(error, self._host, self._port)
            if not isinstance(told, UnavailableError):
                return told
        said = "timed out" if isinstance(error, BlockingIOError) else str(error)
        return Disconnected(f"{self._host}:{self._port}: {said}")

    def _answer(self, deadline: float) -> bytes:
        """Of what came the first answer, whole."""
        came, wanted = self._came, _LENGTH.size
        while len(came) < wanted:
            self._limit(socket.SO_RCVTIMEO, deadline)
            part = self._socket.recv(RECEIVE_BYTES)
            if not part:
                raise OSError("closed by the broker")
            came += part
            if wanted == _LENGTH.size <= len(came):
                wanted += self._size()
        end = _LENGTH.size + self._size()
        answer = bytes(came[_LENGTH.size : end])
        del came[:end]
        return answer

    def _size(self) -> int:
        size: int = _LENGTH.unpack_from(self._came)[0]
        if not 4 <= size <= ANSWER_BYTES_MAX:
            raise OSError(f"an answer of {size} bytes")
        return size

    def _limit(self, which: int, deadline: float) -> None:
        """The next call of the socket ends by ``deadline``."""
        left = deadline - time.monotonic()
        if left <= 0:
            raise TimeoutError("timed out")
        if not self._plain:
            self._socket.settimeout(left)
            return
        limit_us = max(int(left * 1_000_000), LIMIT_US_MIN)
        self._socket.setsockopt(socket.SOL_SOCKET, which, _LIMIT.pack(*divmod(limit_us, 1_000_000)))
