"""``kafka.bootstrap`` as a person writes it: what is wrong with its form, and why nobody answers there.

librdkafka says "Broker transport failure" to all of it: a port that is a word, a host nobody has heard of, a
port where nothing listens.
"""

from __future__ import annotations

import re
import socket
import threading
from collections.abc import Callable
from typing import Final

from refold.errors import RefoldError, UnavailableError

#: librdkafka's own, where an address has none.
PORT_DEFAULT: Final = 9092
PORT_MAX: Final = 65_535
_PROTOCOLS: Final = frozenset({"PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL"})
_ADDRESS: Final = re.compile(
    r"(?:(?P<protocol>[^:/]+)://)?(?P<host>\[[^\]\s]+\]|[^:\s/\[\]]+)(?::(?P<port>[^:\s/]*))?"
)

#: What a look at the brokers may cost after a command has waited already: a name server that is away answers
#: after 5 s and more. Of a long list the first ones are asked.
LOOK_S_MAX: Final = 2.0
CONNECT_S_MAX: Final = 1.0
LOOKED_AT_MAX: Final = 3

#: Called with the brokers and the seconds at most where an answer takes longer than it should: a command says
#: so to whoever waits.
on_wait: Final[list[Callable[[str, float], None]]] = []


def addresses(servers: str) -> list[tuple[str, int]]:
    """Hosts and ports. Raises ValueError in words for what can be no list of brokers."""
    found = []
    for one in (part.strip() for part in servers.split(",")):
        if not one:
            raise ValueError("it is empty" if not servers.strip(" ,") else "there is a comma too many")
        match = _ADDRESS.fullmatch(one)
        if match is None:
            raise ValueError(f"{one!r} is not host:port")
        protocol, host, port = match["protocol"], match["host"], match["port"]
        if protocol is not None and protocol.upper() not in _PROTOCOLS:
            raise ValueError(f"{one!r} is not host:port: {protocol}:// is no protocol of Kafka's")
        if port is not None and not (port.isascii() and port.isdigit() and 1 <= int(port) <= PORT_MAX):
            raise ValueError(f"{one!r} is not host:port: a port is a number from 1 to {PORT_MAX}")
        found.append((host.strip("[]"), PORT_DEFAULT if port is None else int(port)))
    return found


def why_nobody_answers(servers: str) -> str:
    """For each of the first brokers, in words. Resolves and connects; blocks for ``LOOK_S_MAX`` at most."""
    try:
        asked = addresses(servers)[:LOOKED_AT_MAX]
    except ValueError as error:
        return str(error)
    looks = [_look(host, port) for host, port in asked]
    told = dict.fromkeys(look() for look in looks)
    return "; ".join(told)


def with_cause(error: RefoldError) -> RefoldError:
    """The error, its text with the cause at its end where no broker answered. Blocks as
    :func:`why_nobody_answers` where nobody has looked yet; returns what it was given."""
    if isinstance(error, UnavailableError) and error.bootstrap and error.cause is None:
        error.cause = why_nobody_answers(error.bootstrap)
    return error


def _look(host: str, port: int) -> Callable[[], str]:
    """Begin to look, in a thread that nobody has to wait for; returns what waits for what it found."""
    found: list[str] = []
    # Name servers cannot be given a deadline.
    thread = threading.Thread(target=lambda: found.append(_found(host, port)), daemon=True)
    thread.start()

    def wait() -> str:
        thread.join(LOOK_S_MAX)
        return found[0] if found else f"the name {host} was not resolved within {LOOK_S_MAX:.0f} s"

    return wait


def _found(host: str, port: int) -> str:
    where = f"{host}:{port}"
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
    except (OSError, UnicodeError) as error:
        reason = getattr(error, "strerror", None) or "no valid name"
        return f"the name {host} cannot be resolved ({reason})"
    with socket.socket(family, kind, protocol) as tried:
        tried.settimeout(CONNECT_S_MAX)
        try:
            tried.connect(address)
        except ConnectionRefusedError:
            return f"nothing listens on {where}"
        except TimeoutError:
            seconds = f"{CONNECT_S_MAX:.0f} s"
            return (
                f"{where} took no connection within {seconds} (a firewall, or an address of another network)"
            )
        except OSError as error:
            return f"{where} cannot be reached ({error.strerror or error})"
    return (
        f"{where} takes connections, but no Kafka of this security protocol answered (another service, TLS or"
        " SASL, a broker that hangs, or one whose advertised address cannot be reached from here)"
    )
