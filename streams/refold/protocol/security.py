"""Connections secured as the user's librdkafka table says: which of its settings are known, and what they do.

A setting that is known is done as librdkafka does it, and what is not set is as its defaults have it: where
TLS is wanted, the broker's certificate and name are checked. One that is about connections and not known is
:class:`Unsupported`; the worker then keeps to librdkafka rather than connect in another way than asked.
"""

from __future__ import annotations

import socket
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from pydantic import SecretStr

from refold.protocol.sasl import MECHANISMS, Exchange, Sasl
from refold.protocol.table import Table
from refold.protocol.table import Unsupported as Unsupported
from refold.protocol.tcp import Tcp, left
from refold.protocol.tls import Tls, explain

#: A setting of librdkafka's that begins so is about connections. All others are none of our business here.
CONNECTING: Final = (
    *("ssl", "sasl.", "security.", "enable.ssl.", "enable.sasl.", "https.", "oauth"),
    *("socket", "broker.address.", "client.dns.", "plugin.", "interceptors"),
    *("resolve_cb", "connect_cb", "closesocket_cb"),
)
#: These change nothing here. Time limits are the caller's; a name is looked up for each connection; requests
#: always leave at once, and a dead connection is always looked for.
INDIFFERENT: Final = frozenset(
    {
        *("socket.timeout.ms", "socket.connection.setup.timeout.ms", "socket.blocking.max.ms"),
        *("socket.max.fails", "socket.nagle.disable", "socket.keepalive.enable", "broker.address.ttl"),
    }
)
HONOURED: Final = frozenset(
    {
        *("security.protocol", "sasl.mechanism", "sasl.mechanisms", "sasl.username", "sasl.password"),
        *("enable.ssl.certificate.verification", "ssl.endpoint.identification.algorithm"),
        *("ssl.ca.location", "ssl.ca.pem", "ssl.certificate.location", "ssl.certificate.pem"),
        *("ssl.key.location", "ssl.key.pem", "ssl.key.password"),
        *("socket.send.buffer.bytes", "socket.receive.buffer.bytes"),
        *("broker.address.family", "client.dns.lookup"),
    }
)

#: Whether there is TLS and SASL.
_PROTOCOLS: Final = {
    "plaintext": (False, False),
    "ssl": (True, False),
    "sasl_plaintext": (False, True),
    "sasl_ssl": (True, True),
}
_FLAGS: Final = {"true": True, "t": True, "1": True, "false": False, "f": False, "0": False}
_NAMED: Final = {"https": True, "none": False}
_FAMILIES: Final = {"any": socket.AF_UNSPEC, "v4": socket.AF_INET, "v6": socket.AF_INET6}


@dataclass(frozen=True, kw_only=True)
class Security:
    """How to connect to any broker of the cluster; ``None``: without. Thread-safe."""

    tcp: Tcp
    tls: Tls | None = None
    sasl: Sasl | None = None

    def prepare(self) -> None:
        """Read the files that TLS needs; the first ``connect`` would otherwise. Blocks for the disk.

        Raises ConfigError where they cannot be used, and Unsupported where no authorities are named and
        Python knows of none: librdkafka looks for them in more places.
        """
        if self.tls is not None and self.tls.rootless:
            raise Unsupported("ssl.ca.location")

    def connect(self, host: str, port: int, timeout_s: float) -> socket.socket:
        """A connection on which the broker has proved itself as far as the settings ask for it.

        Blocks for ``timeout_s`` at most, and as long as a name server takes. The socket keeps ``timeout_s``
        as the limit of each further call.

        Raises:
            UnavailableError: nobody answers, or not in time: may pass by itself.
            ConfigError: the broker's certificate is not accepted, or a file of ours cannot be used.
            PermissionDenied: the broker does not accept our certificate. With TLS 1.3 it may say so only
                when the socket is read: :func:`refold.protocol.tls.explain` knows that error too.
        """
        until = time.monotonic() + timeout_s
        context = None if self.tls is None else self.tls.context
        try:
            connection = self.tcp.connect(host, port, until)
            try:
                if context is not None:
                    connection.settimeout(left(until))
                    connection = context.wrap_socket(connection, server_hostname=host)
                connection.settimeout(timeout_s)
            except BaseException:
                connection.close()
                raise
        except (OSError, ValueError) as error:  # ValueError: a host name that can be none
            raise explain(error, host, port) from error
        return connection

    def authenticate(self, exchange: Exchange) -> float | None:
        """Once per connection, before anything but ApiVersions. See :meth:`.sasl.Sasl.authenticate`: it
        returns the seconds after which the broker wants this again, which a new connection does."""
        return None if self.sasl is None else self.sasl.authenticate(exchange)


def security_of(table: Mapping[str, Any]) -> Security:
    """Raises Unsupported. Of a table that librdkafka refuses anything may come out: its clients are made
    first, and say what is wrong with it."""
    about = [name for name in table if name.startswith(CONNECTING) and name not in INDIFFERENT]
    given = Table(table, about)
    if unknown := sorted(given.names - HONOURED):
        raise Unsupported(*unknown)
    # The other choice is for Kerberos: it looks the first brokers' names up in another way.
    given.choice("client.dns.lookup", {"use_all_dns_ips": True}, "use_all_dns_ips")
    tls, sasl = given.choice("security.protocol", _PROTOCOLS, "plaintext")
    return Security(
        tcp=Tcp(
            family=given.choice("broker.address.family", _FAMILIES, "any"),
            send_buffer_bytes=given.number("socket.send.buffer.bytes"),
            receive_buffer_bytes=given.number("socket.receive.buffer.bytes"),
        ),
        tls=_tls(given) if tls else None,
        sasl=_sasl(given) if sasl else None,
    )


def _tls(given: Table) -> Tls:
    given.at_most_one("ssl.ca.location", "ssl.ca.pem")
    certificate = given.at_most_one("ssl.certificate.location", "ssl.certificate.pem")
    key = given.at_most_one("ssl.key.location", "ssl.key.pem")
    if certificate != key:
        raise Unsupported("ssl.key.location" if certificate else "ssl.certificate.location")
    return Tls(
        verified=given.choice("enable.ssl.certificate.verification", _FLAGS, "true"),
        named=given.choice("ssl.endpoint.identification.algorithm", _NAMED, "https"),
        ca=given.text("ssl.ca.location"),
        ca_pem=given.secret("ssl.ca.pem"),
        certificate=given.text("ssl.certificate.location"),
        certificate_pem=given.secret("ssl.certificate.pem"),
        key=given.text("ssl.key.location"),
        key_pem=given.secret("ssl.key.pem"),
        key_password=given.secret("ssl.key.password") or SecretStr(""),
    )


def _sasl(given: Table) -> Sasl:
    given.at_most_one("sasl.mechanisms", "sasl.mechanism")
    mechanism = given.text("sasl.mechanisms") or given.text("sasl.mechanism")
    username, password = given.text("sasl.username"), given.secret("sasl.password")
    if mechanism not in MECHANISMS:  # librdkafka's default is Kerberos
        raise Unsupported("sasl.mechanism")
    if username is None or password is None:
        raise Unsupported("sasl.username", "sasl.password")
    return Sasl(mechanism=mechanism, username=username, password=password)
