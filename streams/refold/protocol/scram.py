"""SCRAM (RFC 5802, RFC 7677) as a client without channel binding. Pure: the nonce is given.

A broker that knows the password can prove it, and one that cannot is not believed. User and password are
taken as UTF-8 as they are: librdkafka and Kafka's brokers leave SASLprep out as well.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
from typing import Final

from pydantic import SecretStr

from refold.errors import PermissionDenied

#: Kafka's mechanisms and what they hash with.
HASHES: Final = {"SCRAM-SHA-256": "sha256", "SCRAM-SHA-512": "sha512"}

#: RFC 7677, section 4; Kafka stores no credentials with fewer. With one iteration, whoever answers in a
#: broker's place could guess passwords cheaply from the proof.
ITERATIONS_MIN: Final = 4_096
#: Kafka stores none with more than 16 384. 1 000 000 are about half a second of this thread.
ITERATIONS_MAX: Final = 1_000_000

#: base64("n,,"): no channel binding, nobody else's name.
_NO_BINDING: Final = "n,,"
_BINDING: Final = base64.b64encode(_NO_BINDING.encode()).decode()


def first(username: str, nonce: str) -> bytes:
    """The client's first message."""
    return f"{_NO_BINDING}{_bare(username, nonce)}".encode()


def respond(
    mechanism: str, username: str, password: SecretStr, nonce: str, challenge: bytes
) -> tuple[bytes, bytes]:
    """The client's final message, and the signature by which the broker then has to prove itself.

    Computes for about a millisecond with 4 096 iterations. Raises PermissionDenied for a ``challenge`` that
    is not for this ``nonce`` or cannot be worked with.
    """
    told = _attributes(challenge)
    whole, iterations = told.get("r", ""), told.get("i", "")
    if not (whole.startswith(nonce) and len(whole) > len(nonce)):
        raise _not_believed("its nonce does not continue ours")
    if not (iterations.isascii() and iterations.isdigit() and len(iterations) <= len(str(ITERATIONS_MAX))):
        raise _not_believed("it names no number of iterations")
    if not ITERATIONS_MIN <= int(iterations) <= ITERATIONS_MAX:
        raise _not_believed(f"{iterations} iterations, not {ITERATIONS_MIN} to {ITERATIONS_MAX}")
    salt = _decoded(told.get("s", ""))
    unproved = f"c={_BINDING},r={whole}"
    spoken = b",".join((_bare(username, nonce).encode(), challenge, unproved.encode()))
    proof, signature = _keys(HASHES[mechanism], password, salt, int(iterations), spoken)
    return f"{unproved},p={base64.b64encode(proof).decode()}".encode(), signature


def verify(signature: bytes, outcome: bytes) -> None:
    """``outcome``: the broker's final message. Raises PermissionDenied where it does not prove itself."""
    told = _attributes(outcome)
    if "e" in told:
        raise _not_believed("it ends with an error of SCRAM's")
    if not hmac.compare_digest(signature, _decoded(told.get("v", ""))):
        raise _not_believed("it could not prove that it knows the password")


def _bare(username: str, nonce: str) -> str:
    return f"n={username.replace('=', '=3D').replace(',', '=2C')},r={nonce}"


def _keys(
    algorithm: str, password: SecretStr, salt: bytes, iterations: int, spoken: bytes
) -> tuple[bytes, bytes]:
    """The client's proof and the server's signature. Nothing is raised here: there are keys in this frame."""
    salted = hashlib.pbkdf2_hmac(algorithm, password.get_secret_value().encode(), salt, iterations)
    key = hmac.digest(salted, b"Client Key", algorithm)
    stamp = hmac.digest(hashlib.new(algorithm, key).digest(), spoken, algorithm)
    proof = bytes(one ^ other for one, other in zip(key, stamp, strict=True))
    return proof, hmac.digest(hmac.digest(salted, b"Server Key", algorithm), spoken, algorithm)


def _attributes(message: bytes) -> dict[str, str]:
    try:
        told = dict(part.split("=", 1) for part in message.decode().split(","))
    except ValueError:  # a part without "=", or no UTF-8
        raise _not_believed("it does not speak SCRAM") from None
    if "m" in told:  # RFC 5802, section 5.1: an extension that must be understood
        raise _not_believed("it demands an extension of SCRAM")
    return told


def _decoded(text: str) -> bytes:
    try:
        decoded = base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        decoded = b""
    if not decoded:
        raise _not_believed("it does not speak SCRAM")
    return decoded


def _not_believed(why: str) -> PermissionDenied:
    return PermissionDenied(
        f"what answers as a broker is not believed: {why}. Check kafka.bootstrap, that the port is a listener"
        " with SASL, and who else could answer at that address"
    )
