"""The SASL conversation that opens a connection: SaslHandshake, then SaslAuthenticate as often as it takes.

Secrets are in ``SecretStr`` and :class:`Hidden` only, so that no error, repr or frame shows one.
"""

from __future__ import annotations

import secrets
import struct
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

from pydantic import SecretStr

from refold.errors import PermissionDenied, UnavailableError
from refold.protocol import scram

#: ``exchange(api_key, version, body)`` sends a request and returns its response's body, without the header.
Exchange = Callable[[int, int, bytes], bytes]

PLAIN: Final = "PLAIN"
MECHANISMS: Final = frozenset({PLAIN, *scram.HASHES})

#: API keys and the versions spoken: all that Kafka 3.6 to 4 knows of the first, and of the second the one
#: that first tells how long a session lasts.
HANDSHAKE: Final = (17, 1)
AUTHENTICATE: Final = (36, 1)

#: Of randomness in a nonce: 192 bits are never drawn twice. In text 32 characters, as librdkafka's.
NONCE_BYTES: Final = 24
#: Of what a broker says about a refusal, and of the mechanisms that it offers.
WORDS_CHARS_MAX: Final = 200
RETRY_AFTER_S: Final = 1.0

_UNSUPPORTED_MECHANISM: Final = 33
_ILLEGAL_STATE: Final = 34  # what a listener without SASL says to it
_REFUSED: Final = 58


class Hidden(bytes):
    """Bytes that no traceback shows, also with a header put before them by ``+``."""

    def __repr__(self) -> str:
        return f"<{len(self)} bytes, hidden>"

    def __radd__(self, before: bytes) -> Hidden:
        return Hidden(b"".join((before, self)))


@dataclass(frozen=True, kw_only=True)
class Sasl:
    mechanism: str
    username: str
    password: SecretStr = field(repr=False)

    def authenticate(self, exchange: Exchange) -> float | None:
        """Seconds that the session lasts where the broker names them, else ``None``. Blocks for two or three
        exchanges, whose errors come through.

        Raises:
            PermissionDenied: the broker refuses the mechanism or the credentials, or does not prove itself.
            UnavailableError: another error of the broker's, or an answer that is none.
        """
        try:
            self._agree(exchange)
            if self.mechanism == PLAIN:
                _, lifetime_ms = self._tell(exchange, self._plain())
            else:
                nonce = secrets.token_urlsafe(NONCE_BYTES)
                challenge, _ = self._tell(exchange, scram.first(self.username, nonce))
                proof, signature = scram.respond(
                    self.mechanism, self.username, self.password, nonce, challenge
                )
                outcome, lifetime_ms = self._tell(exchange, proof)
                scram.verify(signature, outcome)
        except struct.error as error:  # shorter than it says
            raise UnavailableError(
                "what answers does not speak Kafka's SASL. Check kafka.bootstrap and that the port is a"
                " listener with SASL.",
                retry_after_s=RETRY_AFTER_S,
            ) from error
        return lifetime_ms / 1000 if lifetime_ms > 0 else None

    def _plain(self) -> Hidden:
        """RFC 4616, without a name to act for."""
        return Hidden(f"\0{self.username}\0{self.password.get_secret_value()}".encode())

    def _agree(self, exchange: Exchange) -> None:
        name = self.mechanism.encode()
        body = exchange(*HANDSHAKE, struct.pack(">h", len(name)) + name)
        code, count = struct.unpack_from(">hi", body)
        if code == _UNSUPPORTED_MECHANISM:
            raise PermissionDenied(
                f"the broker does not offer {self.mechanism} but {_mechanisms(body, count) or 'nothing'}. Set"
                " kafka.sasl_mechanism to what it offers."
            )
        self._check(code, "")

    def _tell(self, exchange: Exchange, token: bytes) -> tuple[bytes, int]:
        """What the broker answers, and the milliseconds that the session lasts, once it is one."""
        body = Hidden(exchange(*AUTHENTICATE, struct.pack(">i", len(token)) + Hidden(token)))
        code, chars = struct.unpack_from(">hh", body)  # -1: null, here and below
        at = struct.calcsize(">hh") + max(chars, 0)
        self._check(code, body[struct.calcsize(">hh") : at].decode("utf-8", "replace"))
        (size,) = struct.unpack_from(">i", body, at)
        answer, lifetime_ms = struct.unpack_from(f">{max(size, 0)}sq", body, at + 4)
        return answer, lifetime_ms

    def _check(self, code: int, words: str) -> None:
        if not code:
            return
        if self.password.get_secret_value() in words:  # with PLAIN it was told, and may repeat it
            words = ""
        said = _shown(words) or f"Kafka's error {code}"
        if code == _ILLEGAL_STATE:
            raise PermissionDenied(
                "the broker expects no credentials at this port. Check the port in kafka.bootstrap, and"
                " kafka.security_protocol."
            )
        if code == _REFUSED:
            raise PermissionDenied(
                f"the broker refused the credentials of {self.username!r} ({said}). Check"
                " kafka.sasl_mechanism, kafka.sasl_username and kafka.sasl_password."
            )
        raise UnavailableError(f"the broker did not authenticate: {said}.", retry_after_s=RETRY_AFTER_S)


def _mechanisms(body: bytes, count: int) -> str:
    names: list[str] = []
    at = struct.calcsize(">hi")
    while len(names) < count:
        (size,) = struct.unpack_from(">h", body, at)
        (name,) = struct.unpack_from(f">{max(size, 0)}s", body, at + 2)
        names.append(name.decode("utf-8", "replace"))
        at += 2 + max(size, 0)
    return _shown(", ".join(names))


def _shown(words: str) -> str:
    """Without what could forge lines of a log, and not longer than anybody reads."""
    return "".join(char if char.isprintable() else " " for char in words[:WORDS_CHARS_MAX]).strip(" .")
