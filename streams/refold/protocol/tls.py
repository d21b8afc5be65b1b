"""TLS towards a broker as librdkafka does it: what is trusted, what is shown, what a failure means.

The files are read once, as librdkafka reads them: all clients of a worker hold the same certificates.
"""

from __future__ import annotations

import ssl
import tempfile
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Final

from pydantic import SecretStr

from refold.errors import ConfigError, PermissionDenied, RefoldError, UnavailableError

#: librdkafka's word for "wherever systems keep them", which is what it does without a location as well.
PROBE: Final = "probe"
#: Seconds after which a connection that could not be made is worth another try.
RETRY_AFTER_S: Final = 1.0

_WRONG_NAME: Final = frozenset({62, 64})  # X509_V_ERR_HOSTNAME_MISMATCH, X509_V_ERR_IP_ADDRESS_MISMATCH
#: In OpenSSL's name of an alert: the broker does not take our certificate, or wants one. With TLS 1.2 the
#: last one is all that is said about one that is missing.
_OUR_CERTIFICATE: Final = ("CERTIFICATE", "UNKNOWN_CA", "ACCESS_DENIED", "HANDSHAKE_FAILURE")
_NO_TLS: Final = frozenset(
    {"WRONG_VERSION_NUMBER", "UNKNOWN_PROTOCOL", "HTTP_REQUEST", "RECORD_LAYER_FAILURE"}
)


@dataclass(frozen=True, kw_only=True)
class Tls:
    """``verified``: the broker's certificate is checked; ``named``: and that it is for the host asked for.
    The rest are files in PEM, or what would be in them."""

    verified: bool = True
    named: bool = True
    ca: str | None = None
    ca_pem: SecretStr | None = field(default=None, repr=False)
    certificate: str | None = None
    certificate_pem: SecretStr | None = field(default=None, repr=False)
    key: str | None = None
    key_pem: SecretStr | None = field(default=None, repr=False)
    key_password: SecretStr = field(default=SecretStr(""), repr=False)

    @cached_property
    def context(self) -> ssl.SSLContext:
        """Reads the files the first time, and blocks for the disk then. Raises ConfigError."""
        # ssl.create_default_context is stricter than librdkafka since Python 3.13 (RFC 5280 to the letter).
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        # OpenSSL's own list, which librdkafka has: Python's is shorter, and brokers may speak what it lacks.
        context.set_ciphers("DEFAULT")
        context.check_hostname = self.verified and self.named
        context.verify_mode = ssl.CERT_REQUIRED if self.verified else ssl.CERT_NONE
        try:
            what = "the authorities' certificates (kafka.ssl_ca, ssl.ca.pem)"
            self._trust(context)
            what = "the client's certificate, its key or the key's password (kafka.ssl_certificate, ...)"
            self._show(context)
        except OSError as error:  # as ssl.SSLError is
            # Not the error's own text: it may name a descriptor that was never anybody's file.
            why = getattr(error, "reason", None) or getattr(error, "strerror", None) or "not PEM"
            raise ConfigError(f"{what} cannot be used: {why}. Check the files") from error
        return context

    @property
    def rootless(self) -> bool:
        """No authority is named and this Python knows of none: every certificate would be refused."""
        read = self.context.cert_store_stats()["x509"]
        if not self.verified or self.ca_pem is not None or self.ca not in (None, PROBE):
            return False
        folder = ssl.get_default_verify_paths().capath  # files in it are read when they are needed
        return not read and not (folder and any(Path(folder).iterdir()))

    def _trust(self, context: ssl.SSLContext) -> None:
        if self.ca_pem is not None:
            # Python takes ASCII only; what is not is a comment, or no PEM.
            ascii_only = self.ca_pem.get_secret_value().encode("ascii", "replace").decode()
            context.load_verify_locations(cadata=ascii_only)
        elif self.ca is None or self.ca == PROBE:
            context.load_default_certs()
        elif Path(self.ca).is_dir():
            context.load_verify_locations(capath=self.ca)
        else:
            context.load_verify_locations(cafile=self.ca)

    def _show(self, context: ssl.SSLContext) -> None:
        with ExitStack() as stack:
            certificate = self.certificate or _unnamed_file(stack, self.certificate_pem)
            key = self.key or _unnamed_file(stack, self.key_pem)
            if certificate is not None:
                # A function, also where there is no password: without one OpenSSL asks on the terminal.
                context.load_cert_chain(certificate, key, self.key_password.get_secret_value)


def _unnamed_file(stack: ExitStack, pem: SecretStr | None) -> str | None:
    """Python's ``ssl`` reads keys from files only: this one has no name, and is gone however we end."""
    if pem is None:
        return None
    file = stack.enter_context(tempfile.TemporaryFile())  # noqa: SIM115
    file.write(pem.get_secret_value().encode())
    file.seek(0)
    return f"/dev/fd/{file.fileno()}"


def explain(error: Exception, host: str, port: int) -> RefoldError:
    """What to raise instead of ``error``, which befell a connection to ``host``: also one that was made, as
    with TLS 1.3 the first read tells that the broker refuses the client's certificate.

    UnavailableError is what may pass by itself.
    """
    at = f"{host}:{port}"
    if isinstance(error, ssl.SSLCertVerificationError):
        if error.verify_code in _WRONG_NAME:
            return ConfigError(
                f"the broker at {at} has a certificate for another name ({error.verify_message}). Connect by"
                " a name that it has (kafka.bootstrap, the brokers' advertised.listeners), or give up this"
                " check with ssl.endpoint.identification.algorithm=none in kafka.librdkafka."
            )
        return ConfigError(
            f"the certificate of the broker at {at} is not trusted ({error.verify_message}). Name the"
            " authority that signed it with kafka.ssl_ca."
        )
    reason = (error.reason or "") if isinstance(error, ssl.SSLError) else ""
    if "ALERT" in reason and any(word in reason for word in _OUR_CERTIFICATE):
        return PermissionDenied(
            f"the broker at {at} refuses the client's certificate, or misses one ({reason}). Check"
            " kafka.ssl_certificate and kafka.ssl_key."
        )
    if reason in _NO_TLS:
        return ConfigError(f"{at} does not speak TLS ({reason}). Check the port and kafka.security_protocol.")
    why = reason or getattr(error, "strerror", None) or str(error) or type(error).__name__
    return UnavailableError(
        f"no broker answers at {at} ({why}). Check that it runs, and kafka.bootstrap and"
        " kafka.security_protocol.",
        retry_after_s=RETRY_AFTER_S,
    )
