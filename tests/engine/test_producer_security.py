"""Connections of refold's own producer: what of a librdkafka table is known, TLS against a server with
certificates of our own making, SASL by RFC 7677's example and on a real broker."""

from __future__ import annotations

import base64
import datetime
import ipaddress
import itertools
import os
import socket
import ssl
import struct
import subprocess
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import pytest
from confluent_kafka import KafkaException, Producer
from confluent_kafka.admin import (
    AdminClient,
    ScramCredentialInfo,
    ScramMechanism,
    UserScramCredentialUpsertion,
)
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.x509.oid import NameOID
from pydantic import SecretStr

from refold.broker import EmbeddedBroker
from refold.errors import ConfigError, PermissionDenied, RefoldError, UnavailableError
from refold.protocol import scram, security
from refold.protocol.sasl import Hidden
from refold.protocol.security import Security, Unsupported, security_of
from refold.protocol.tls import Tls, explain

ANSWER_S_MAX = 60.0
PASSWORD = "correct horse battery"

# --- the table -------------------------------------------------------------------------------------------


def test_without_settings_there_is_neither_tls_nor_sasl() -> None:
    plain = security_of({})
    assert plain.tls is None
    assert plain.sasl is None


def test_where_tls_is_wanted_the_broker_is_checked_unless_the_table_says_otherwise() -> None:
    tls = security_of({"security.protocol": "SSL"}).tls
    assert tls is not None
    assert (tls.verified, tls.named) == (True, True)
    assert tls.context.verify_mode is ssl.CERT_REQUIRED
    assert tls.context.check_hostname
    unnamed = security_of({"security.protocol": "ssl", "ssl.endpoint.identification.algorithm": "none"}).tls
    assert unnamed is not None
    assert (unnamed.context.verify_mode, unnamed.context.check_hostname) == (ssl.CERT_REQUIRED, False)


def test_what_is_not_about_connections_is_ignored() -> None:
    table = {
        "linger.ms": 5, "fetch.max.bytes": "1", "queue.buffering.max.kbytes": 7, "statistics.interval.ms": 0,
        "bootstrap.servers": "b:1", "client.id": "x", "error_cb": print, "reconnect.backoff.ms": 20,
        "connections.max.idle.ms": "1000", "client.rack": "a", "socket.timeout.ms": "1000",
        "socket.nagle.disable": "false", "socket.keepalive.enable": "true", "broker.address.ttl": "5",
    }  # fmt: skip
    assert security_of(table) == security_of({})


def test_what_is_honoured_arrives() -> None:
    found = security_of(
        {
            "security.protocol": "Sasl_SSL", "sasl.mechanism": "SCRAM-SHA-512", "sasl.username": "u",
            "sasl.password": " \tp ", "ssl.ca.location": "/ca", "ssl.certificate.location": "/c",
            "ssl.key.pem": "k", "ssl.key.password": "kp", "enable.ssl.certificate.verification": False,
            "socket.send.buffer.bytes": 4096, "socket.receive.buffer.bytes": "8192",
            "broker.address.family": "V4", "client.dns.lookup": "use_all_dns_ips", "ssl.ca.pem": "",
            "ssl.certificate.pem": None,
        }
    )  # fmt: skip
    assert found.sasl is not None
    assert (found.sasl.mechanism, found.sasl.username) == ("SCRAM-SHA-512", "u")
    assert found.sasl.password.get_secret_value() == "p ", "librdkafka takes the blanks before a value away"
    assert found.tls == Tls(
        verified=False, ca="/ca", certificate="/c", key_pem=SecretStr("k"), key_password=SecretStr("kp")
    )
    assert found.tcp.family is socket.AF_INET
    assert (found.tcp.send_buffer_bytes, found.tcp.receive_buffer_bytes) == (4096, 8192)


PLAIN = {"sasl.mechanism": "PLAIN", "sasl.username": "u", "sasl.password": PASSWORD}


@pytest.mark.parametrize(
    ("table", "names"),
    [
        (
            {"ssl.keystore.location": "/k", "ssl.crl.location": "/c"},
            ("ssl.crl.location", "ssl.keystore.location"),
        ),
        ({"ssl.cipher.suites": "x"}, ("ssl.cipher.suites",)),
        ({"ssl_engine_callback_data": "x"}, ("ssl_engine_callback_data",)),
        ({"plugin.library.paths": "x"}, ("plugin.library.paths",)),
        ({"oauth_cb": print}, ("oauth_cb",)),
        ({"sasl.oauthbearer.method": "oidc"}, ("sasl.oauthbearer.method",)),
        ({"enable.sasl.oauthbearer.unsecure.jwt": "true"}, ("enable.sasl.oauthbearer.unsecure.jwt",)),
        ({"sasl.kerberos.keytab": "/k"}, ("sasl.kerberos.keytab",)),
        ({"client.dns.lookup": "resolve_canonical_bootstrap_servers_only"}, ("client.dns.lookup",)),
        ({"security.protocol": "quic"}, ("security.protocol",)),
        ({"security.protocol": "sasl_ssl"}, ("sasl.mechanism",)),
        ({**PLAIN, "security.protocol": "sasl_ssl", "sasl.mechanism": "GSSAPI"}, ("sasl.mechanism",)),
        ({**PLAIN, "security.protocol": "sasl_ssl", "sasl.mechanism": "plain"}, ("sasl.mechanism",)),
        (
            {**PLAIN, "security.protocol": "sasl_ssl", "sasl.mechanisms": "GSSAPI"},
            ("sasl.mechanisms", "sasl.mechanism"),
        ),
        (
            {**PLAIN, "security.protocol": "sasl_ssl", "sasl.password": ""},
            ("sasl.username", "sasl.password"),
        ),
        ({**PLAIN, "sasl.password": "a\0b"}, ("sasl.password",)),
        ({**PLAIN, "sasl.password": "a\udc80b"}, ("sasl.password",)),
        ({"security.protocol": "ssl", "ssl.key.location": "/k"}, ("ssl.certificate.location",)),
        ({"security.protocol": "ssl", "ssl.certificate.pem": "c"}, ("ssl.key.location",)),
        (
            {"security.protocol": "ssl", "ssl.ca.pem": "c", "ssl.ca.location": "/c"},
            ("ssl.ca.location", "ssl.ca.pem"),
        ),
        (
            {"security.protocol": "ssl", "enable.ssl.certificate.verification": "maybe"},
            ("enable.ssl.certificate.verification",),
        ),
        ({"socket.send.buffer.bytes": "-1"}, ("socket.send.buffer.bytes",)),
        ({"broker.address.family": "v5"}, ("broker.address.family",)),
    ],
)  # fmt: skip
def test_what_is_not_known_is_named(table: dict[str, Any], names: tuple[str, ...]) -> None:
    with pytest.raises(Unsupported) as caught:
        security_of(table)
    assert caught.value.names == names
    assert_hidden(caught.value, PASSWORD)


@pytest.mark.parametrize("name", sorted(security.HONOURED | security.INDIFFERENT))
def test_every_name_of_the_rules_is_one_of_librdkafkas(name: str) -> None:
    """Goal: no rule with a slip of the pen in it, which would leave a setting to be ignored or refused."""
    assert name.startswith(security.CONNECTING)
    assert "No such configuration property" not in complaint({name: ""})
    assert "No such configuration property" in complaint({f"{name}.": ""}), "the control"


def complaint(settings: dict[str, Any]) -> str:
    try:
        Producer({**settings, "log_level": 0})
    except KafkaException as error:
        return str(error)
    return ""


def test_no_repr_shows_a_secret() -> None:
    found = security_of(
        {
            **PLAIN, "security.protocol": "sasl_ssl", "ssl.key.pem": "key material",
            "ssl.key.password": "kp-1", "ssl.certificate.location": "/c",
        }
    )  # fmt: skip
    shown = repr(found) + str(found)
    assert [secret for secret in (PASSWORD, "key material", "kp-1") if secret in shown] == []


def assert_hidden(error: BaseException, *hidden: str) -> None:
    """Neither in the error nor in any local of the producer's frames, as tools print them."""
    told = traceback.TracebackException.from_exception(error, capture_locals=True)
    frames = []
    level: traceback.TracebackException | None = told
    while level is not None:
        frames += [f"{frame.name} {frame.locals}" for frame in level.stack if "/protocol/" in frame.filename]
        level = level.__cause__ or level.__context__
    # `table` is what the caller has, who holds it anyway.
    shown = [frame for frame in (*frames, str(error), repr(error)) if not frame.startswith("security_of ")]
    assert frames, "a frame of the producer's is what this is about"
    assert [(secret, line) for line in shown for secret in hidden if secret in line] == []


# --- SCRAM -----------------------------------------------------------------------------------------------

#: RFC 7677, section 3.
NONCE = "rOprNGfwEbeRWgbNEkqO"
WHOLE = "rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0"
SALT = "W22ZaJ0SNY7soEsUEjb6gQ=="
CHALLENGE = f"r={WHOLE},s={SALT},i=4096".encode()
OUTCOME = b"v=6rriTRBi23WpRR/wtup+mMhUZUn/dB5nLTJRsjl95G4="


def respond(challenge: bytes) -> tuple[bytes, bytes]:
    return scram.respond("SCRAM-SHA-256", "user", SecretStr("pencil"), NONCE, challenge)


def test_scram_is_as_in_rfc_7677() -> None:
    assert scram.first("user", NONCE) == f"n,,n=user,r={NONCE}".encode()
    final, signature = respond(CHALLENGE)
    assert final == f"c=biws,r={WHOLE},p=dHzbZapWIk4jUhN+Ute9ytag9zjfMHgsqmmiz7AndVQ=".encode()
    scram.verify(signature, OUTCOME)


def test_a_user_name_may_hold_what_scram_separates_with() -> None:
    assert scram.first("a=b,c", NONCE) == f"n,,n=a=3Db=2Cc,r={NONCE}".encode()


@pytest.mark.parametrize(
    "outcome",
    [
        b"v=7rriTRBi23WpRR/wtup+mMhUZUn/dB5nLTJRsjl95G4=",
        b"v=",
        b"v=6rri",
        b"v=not base64",
        b"x=1",
        b"",
        b"\xff",
        b"e=invalid-proof",
        OUTCOME + b",m=1",
    ],
)
def test_a_broker_that_does_not_prove_itself_is_refused(outcome: bytes) -> None:
    _, signature = respond(CHALLENGE)
    with pytest.raises(PermissionDenied, match=r"not believed.*Check kafka\.bootstrap") as caught:
        scram.verify(signature, outcome)
    assert ("ends with an error" in str(caught.value)) == outcome.startswith(b"e=")


@pytest.mark.parametrize(
    ("challenge", "why"),
    [
        (f"r={NONCE},s={SALT},i=4096", "nonce"),
        (f"r=x{WHOLE},s={SALT},i=4096", "nonce"),
        (f"s={SALT},i=4096", "nonce"),
        (f"r={WHOLE},s={SALT},i=4095", "4095 iterations"),
        (f"r={WHOLE},s={SALT},i=1000001", "1000001 iterations"),
        (f"r={WHOLE},s={SALT},i=-4096", "no number"),
        (f"r={WHOLE},s={SALT},i={'9' * 5000}", "no number"),
        (f"r={WHOLE},s={SALT}", "no number"),
        (f"r={WHOLE},s=*,i=4096", "does not speak SCRAM"),
        (f"r={WHOLE},i=4096", "does not speak SCRAM"),
        (f"m=x,r={WHOLE},s={SALT},i=4096", "extension"),
        ("", "does not speak SCRAM"),
    ],
)
def test_a_challenge_that_cannot_be_meant_for_us_is_refused(challenge: str, why: str) -> None:
    with pytest.raises(PermissionDenied, match=why) as caught:
        respond(challenge.encode())
    assert_hidden(caught.value, "pencil")


# --- the conversation, with brokers that misbehave -------------------------------------------------------


def text(words: str | None) -> bytes:
    return struct.pack(">h", -1) if words is None else struct.pack(">h", len(words.encode())) + words.encode()


def told(code: int = 0, words: str | None = None, token: bytes = b"", lifetime_ms: int = 0) -> bytes:
    return struct.pack(">h", code) + text(words) + struct.pack(">i", len(token)) + token + struct.pack(
        ">q", lifetime_ms
    )  # fmt: skip


def offered(code: int, *mechanisms: str) -> bytes:
    return struct.pack(">hi", code, len(mechanisms)) + b"".join(map(text, mechanisms))


def secured(mechanism: str = "PLAIN", user: str = "ann", password: str = PASSWORD, **more: Any) -> Security:
    return security_of(
        {
            "security.protocol": "sasl_plaintext", "sasl.mechanism": mechanism, "sasl.username": user,
            "sasl.password": password, **more,
        }
    )  # fmt: skip


def script(*answers: bytes) -> tuple[Callable[[int, int, bytes], bytes], list[tuple[int, int, bytes]]]:
    asked: list[tuple[int, int, bytes]] = []

    def exchange(key: int, version: int, body: bytes) -> bytes:
        asked.append((key, version, body))
        return answers[len(asked) - 1]

    return exchange, asked


def test_plain_says_what_rfc_4616_says_and_hears_how_long_it_lasts() -> None:
    exchange, asked = script(offered(0, "PLAIN"), told(lifetime_ms=90_500))
    assert secured().authenticate(exchange) == 90.5
    token = b"\0ann\0" + PASSWORD.encode()
    assert asked == [
        (17, 1, b"\0\x05PLAIN"),
        (36, 1, struct.pack(">i", len(token)) + token),
    ]


def test_without_sasl_nothing_is_said() -> None:
    exchange, asked = script()
    assert security_of({}).authenticate(exchange) is None
    assert asked == []


@pytest.mark.parametrize(
    ("answers", "kind", "words"),
    [
        ([offered(33, "GSSAPI", "SCRAM-SHA-256")], PermissionDenied,
         r"not offer PLAIN but GSSAPI, SCRAM-SHA-256\."),
        ([offered(34)], PermissionDenied, r"no credentials at this port.*security_protocol"),
        ([offered(0), told(58, "Invalid username or password")], PermissionDenied,
         r"of 'ann' \(Invalid username or password\).*kafka\.sasl_password"),
        ([offered(0), told(58, f"no user with {PASSWORD}")], PermissionDenied, r"\(Kafka's error 58\)"),
        ([offered(0), told(58, "x" * 190 + PASSWORD)], PermissionDenied, r"\(Kafka's error 58\)"),
        ([offered(0), told(58, "one\ntwo" + "x" * 9_000)], PermissionDenied, r"\(one twox{193}\)"),
        ([offered(0), told(58)], PermissionDenied, r"\(Kafka's error 58\)"),
        ([offered(0), told(-1)], UnavailableError, "Kafka's error -1"),
        ([offered(0), told()[:-1]], UnavailableError, "does not speak Kafka's SASL"),
        ([offered(33, "X")[:-1]], UnavailableError, "does not speak Kafka's SASL"),
        ([struct.pack(">hi", 33, 2**31 - 1)], UnavailableError, "does not speak Kafka's SASL"),
        ([b""], UnavailableError, "does not speak Kafka's SASL"),
    ],
)  # fmt: skip
def test_a_refusal_says_why_and_what_to_do(answers: list[bytes], kind: type[RefoldError], words: str) -> None:
    exchange, _ = script(*answers)
    with pytest.raises(kind, match=words) as caught:
        secured().authenticate(exchange)
    assert_hidden(caught.value, PASSWORD)


def test_scram_does_not_believe_a_broker_that_takes_everything() -> None:
    """Goal: who does not know the password cannot pose as a broker by saying yes to everybody."""

    def exchange(key: int, _: int, body: bytes) -> bytes:
        if key == 17:
            return offered(0)
        if body[4:].startswith(b"n,,"):
            nonce = body.rpartition(b"r=")[2]
            return told(token=b"r=" + nonce + b"more,s=" + SALT.encode() + b",i=4096")
        return told(token=b"v=" + base64.b64encode(bytes(32)), lifetime_ms=1)

    with pytest.raises(PermissionDenied, match="could not prove that it knows the password") as caught:
        secured("SCRAM-SHA-256").authenticate(exchange)
    assert_hidden(caught.value, PASSWORD)


def test_a_connection_that_breaks_shows_no_secret_in_its_traceback() -> None:
    """Goal: the error comes through as it is, and a frame that had the token, also with a header before it,
    does not print it."""

    def exchange(key: int, _: int, body: bytes) -> bytes:
        request = b"header" + body
        if key == 36:
            raise ConnectionResetError(f"after {len(request)} bytes")
        return offered(0)

    with pytest.raises(ConnectionResetError) as caught:
        secured().authenticate(exchange)
    assert_hidden(caught.value, PASSWORD)
    printed = traceback.TracebackException.from_exception(caught.value, capture_locals=True)
    frame = printed.stack[-1]
    assert frame.locals is not None
    assert (frame.name, "hidden" in frame.locals["body"], "hidden" in frame.locals["request"]) == (
        "exchange", True, True,
    )  # fmt: skip
    assert bytes(b"a" + Hidden(b"b")) == b"ab"


# --- TLS -------------------------------------------------------------------------------------------------


Key = ec.EllipticCurvePrivateKey | rsa.RSAPrivateKey


@dataclass(frozen=True)
class Authority:
    certificate: x509.Certificate
    key: Key

    @property
    def pem(self) -> str:
        return self.certificate.public_bytes(serialization.Encoding.PEM).decode()


def certify(
    subject: str, signer: Authority | None, *names: x509.GeneralName, key: Key | None = None
) -> Authority:
    """A certificate for a day; without ``signer`` that of an authority."""
    key = key or ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, subject)])
    now = datetime.datetime.now(datetime.UTC)
    built = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name if signer is None else signer.certificate.subject)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(hours=1))
        .not_valid_after(now + datetime.timedelta(days=1))
        .add_extension(x509.BasicConstraints(ca=signer is None, path_length=None), critical=True)
    )
    if names:
        built = built.add_extension(x509.SubjectAlternativeName(names), critical=False)
    return Authority(built.sign(key if signer is None else signer.key, hashes.SHA256()), key)


def key_pem(of: Authority, password: str | None = None) -> str:
    locked = (
        serialization.NoEncryption()
        if password is None
        else serialization.BestAvailableEncryption(password.encode())
    )
    return of.key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, locked
    ).decode()


@dataclass(frozen=True)
class Certificates:
    """On disk: ``ca.pem``, ``other.pem`` (an authority that signed nothing), ``server.pem``/``server.key``
    for the name `localhost` only, ``client.pem``/``client.key``, and the latter locked: ``locked.key``."""

    folder: Path
    server: Authority
    client: Authority
    ca: Authority

    def file(self, name: str) -> str:
        return str(self.folder / name)


KEY_PASSWORD = "opens the key"


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    folder = tmp_path_factory.mktemp("certificates")
    ca, other = certify("ours", None), certify("theirs", None)
    server = certify("server", ca, x509.DNSName("localhost"))
    client = certify("client", ca)
    for name, content in {
        "ca.pem": ca.pem, "other.pem": other.pem, "server.pem": server.pem, "server.key": key_pem(server),
        "client.pem": client.pem, "client.key": key_pem(client), "locked.key": key_pem(client, KEY_PASSWORD),
    }.items():  # fmt: skip
        (folder / name).write_text(content)
    return Certificates(folder, server, client, ca)


@contextmanager
def serving(answer: Callable[[socket.socket], None]) -> Iterator[int]:
    """Each connection in a thread of its own; what breaks it is the client's to notice. The port."""

    def handle(connection: socket.socket) -> None:
        try:
            with connection:
                answer(connection)
        except OSError:
            pass

    def accept() -> None:
        while True:
            try:
                connection, _ = listening.accept()
            except OSError:
                return
            connection.settimeout(ANSWER_S_MAX)
            threading.Thread(target=handle, args=(connection,), daemon=True).start()

    with socket.create_server(("127.0.0.1", 0)) as listening:
        threading.Thread(target=accept, daemon=True).start()
        yield listening.getsockname()[1]
        listening.shutdown(socket.SHUT_RDWR)


def tls_server(
    certificates: Certificates, *, client_wanted: bool = False, newest: bool = True, ciphers: str = "DEFAULT"
) -> Any:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificates.file("server.pem"), certificates.file("server.key"))
    context.set_ciphers(ciphers)
    if client_wanted:
        context.verify_mode = ssl.CERT_REQUIRED
        context.load_verify_locations(certificates.file("ca.pem"))
    if not newest:
        context.maximum_version = ssl.TLSVersion.TLSv1_2

    def answer(connection: socket.socket) -> None:
        with context.wrap_socket(connection, server_side=True) as secured:
            secured.sendall(b"hello")
            secured.recv(1)

    return serving(answer)


def greeting(security: Security, port: int, host: str = "localhost") -> bytes:
    with closing(security.connect(host, port, ANSWER_S_MAX)) as connection:
        assert connection.gettimeout() == ANSWER_S_MAX
        return connection.recv(5)


def over_tls(**settings: Any) -> Security:
    names = {
        "ca": "ssl.ca.location", "ca_pem": "ssl.ca.pem", "certificate": "ssl.certificate.location",
        "certificate_pem": "ssl.certificate.pem", "key": "ssl.key.location", "key_pem": "ssl.key.pem",
        "password": "ssl.key.password", "named": "ssl.endpoint.identification.algorithm",
        "verified": "enable.ssl.certificate.verification",
    }  # fmt: skip
    return security_of({"security.protocol": "ssl", **{names[n]: value for n, value in settings.items()}})


def test_the_right_authority_is_accepted_as_file_and_as_text(certificates: Certificates) -> None:
    with tls_server(certificates) as port:
        assert greeting(over_tls(ca=certificates.file("ca.pem")), port) == b"hello"
        commented = f"# geprüft\n{certificates.ca.pem}"
        assert greeting(over_tls(ca_pem=commented), port) == b"hello"


def test_a_wrong_authority_is_refused_and_the_connection_closed(certificates: Certificates) -> None:
    with tls_server(certificates) as port:
        wrong = over_tls(ca=certificates.file("other.pem"))
        with pytest.raises(ConfigError, match=r"localhost:\d+ is not trusted .*kafka\.ssl_ca"):
            wrong.connect("localhost", port, ANSWER_S_MAX)
        ours = {(c.laddr, c.raddr) for c in psutil.Process().net_connections("tcp") if c.raddr}
        assert not [pair for pair in ours if pair[1].port == port], "a connection was left open"
        with pytest.raises(ConfigError, match="is not trusted"):  # and by the system's authorities
            over_tls().connect("localhost", port, ANSWER_S_MAX)


def test_a_wrong_name_is_refused_unless_names_are_not_checked(certificates: Certificates) -> None:
    ca = certificates.file("ca.pem")
    with tls_server(certificates) as port:
        with pytest.raises(ConfigError, match=r"127\.0\.0\.1:\d+ has a certificate for another name"):
            over_tls(ca=ca).connect("127.0.0.1", port, ANSWER_S_MAX)
        assert greeting(over_tls(ca=ca, named="none"), port, "127.0.0.1") == b"hello"
        # The name alone: the authority is still asked for.
        with pytest.raises(ConfigError, match="is not trusted"):
            over_tls(ca=certificates.file("other.pem"), named="none").connect("127.0.0.1", port, ANSWER_S_MAX)
        unchecked = over_tls(ca=certificates.file("other.pem"), verified="false")
        assert greeting(unchecked, port, "127.0.0.1") == b"hello"


def only_server(folder: Path, server: Authority, ca: Authority) -> Certificates:
    (folder / "server.pem").write_text(server.pem)
    (folder / "server.key").write_text(key_pem(server))
    return Certificates(folder, server, server, ca)


def test_an_address_in_the_certificate_is_a_name_too(tmp_path: Path) -> None:
    ca = certify("ours", None)
    server = certify("server", ca, x509.IPAddress(ipaddress.ip_address("127.0.0.1")))
    with tls_server(only_server(tmp_path, server, ca)) as port:
        assert greeting(over_tls(ca_pem=ca.pem), port, "127.0.0.1") == b"hello"


def test_a_broker_with_ciphers_that_python_leaves_out_is_spoken_to_as_librdkafka_does(tmp_path: Path) -> None:
    ca, key = certify("ours", None), rsa.generate_private_key(65_537, 2_048)
    server = certify("server", ca, x509.DNSName("localhost"), key=key)
    files = only_server(tmp_path, server, ca)
    with tls_server(files, newest=False, ciphers="AES128-GCM-SHA256") as port:
        assert greeting(over_tls(ca_pem=ca.pem), port) == b"hello"


def test_a_client_certificate_is_shown_from_files_from_text_and_locked(certificates: Certificates) -> None:
    ca, client = {"ca": certificates.file("ca.pem")}, certificates.client
    files = {"certificate": certificates.file("client.pem"), "key": certificates.file("client.key")}
    texts = {"certificate_pem": client.pem, "key_pem": key_pem(client)}
    locked = {"key": certificates.file("locked.key"), "password": KEY_PASSWORD}
    locked_text = {**locked, "certificate": files["certificate"], "key_pem": key_pem(client, KEY_PASSWORD)}
    del locked_text["key"]
    with tls_server(certificates, client_wanted=True) as port:
        for shown in (
            files,
            texts,
            {**files, **locked},
            {"certificate": files["certificate"], **locked_text},
        ):
            assert greeting(over_tls(**ca, **shown), port) == b"hello"


@pytest.mark.parametrize("newest", [True, False])
def test_a_broker_that_wants_a_client_certificate_says_so(certificates: Certificates, newest: bool) -> None:
    """Goal: with TLS 1.3 the handshake is over when the broker objects, and the first read tells."""
    with tls_server(certificates, client_wanted=True, newest=newest) as port:
        bare = over_tls(ca=certificates.file("ca.pem"))
        if not newest:
            with pytest.raises(PermissionDenied, match=r"kafka\.ssl_certificate"):
                bare.connect("localhost", port, ANSWER_S_MAX)
            return
        with closing(bare.connect("localhost", port, ANSWER_S_MAX)) as connection:
            with pytest.raises(ssl.SSLError) as caught:
                connection.recv(1)
        said = explain(caught.value, "localhost", port)
        assert isinstance(said, PermissionDenied)
        assert "kafka.ssl_certificate" in str(said)


@pytest.mark.parametrize(
    "settings",
    [
        {"ca": "missing.pem"},
        {"ca": "client.key"},
        {"ca_pem": "no certificate"},
        {"ca_pem": "kein Zertifikat für uns"},
        {"certificate": "missing.pem", "key": "client.key"},
        {"certificate": "client.pem", "key": "server.key"},
        {"certificate": "client.pem", "key": "locked.key"},
        {"certificate": "client.pem", "key": "locked.key", "password": "shuts the key"},
        {"certificate": "client.pem", "key_pem": "not a key at all"},
    ],
)
def test_files_that_cannot_be_used_are_named(certificates: Certificates, settings: dict[str, str]) -> None:
    files = {"ca", "certificate", "key"}
    given = {n: certificates.file(v) if n in files else v for n, v in settings.items()}
    with pytest.raises(ConfigError, match=r"cannot be used: [^/]+\. Check the files") as caught:
        over_tls(**given).prepare()
    assert_hidden(caught.value, "shuts the key", "not a key at all")


LOCKED = """
import os, sys
from refold.protocol.security import security_of
os.open(sys.argv[1], os.O_RDWR)  # the first terminal that a session opens is its own
names = ("ssl.certificate.location", "ssl.key.location")
security_of({"security.protocol": "ssl", **dict(zip(names, sys.argv[2:]))}).prepare()
"""


def test_nobody_is_asked_for_the_password_of_a_key(certificates: Certificates) -> None:
    """Goal: a worker that was started from a terminal does not wait on it for what nobody will type."""
    ours, theirs = os.openpty()
    with os.fdopen(ours, "rb"), os.fdopen(theirs, "wb"):
        files = [certificates.file(name) for name in ("client.pem", "locked.key")]
        child = subprocess.run(
            [sys.executable, "-c", LOCKED, os.ttyname(theirs), *files],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=ANSWER_S_MAX,
            check=False,
            start_new_session=True,
        )
    assert "ConfigError: the client's certificate" in child.stderr


def test_a_python_that_knows_no_authorities_leaves_it_to_librdkafka(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, certificates: Certificates
) -> None:
    over_tls().prepare()
    monkeypatch.setenv("SSL_CERT_FILE", str(tmp_path / "none.pem"))
    monkeypatch.setenv("SSL_CERT_DIR", str(tmp_path / "none"))
    with pytest.raises(Unsupported) as caught:
        over_tls(ca="probe").prepare()
    assert caught.value.names == ("ssl.ca.location",)
    for known in (over_tls(ca=certificates.file("ca.pem")), over_tls(verified="false"), security_of({})):
        known.prepare()


def test_a_port_without_tls_says_so(certificates: Certificates) -> None:
    with serving(lambda connection: connection.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n")) as port:
        with pytest.raises(ConfigError, match=r"does not speak TLS.*kafka\.security_protocol"):
            over_tls(ca=certificates.file("ca.pem")).connect("localhost", port, ANSWER_S_MAX)


# --- TCP -------------------------------------------------------------------------------------------------


def until_closed(connection: socket.socket) -> None:
    while connection.recv(10_000):
        pass


def test_nobody_answers_in_time_or_at_all(certificates: Certificates) -> None:
    with serving(until_closed) as port:
        silent = over_tls(ca=certificates.file("ca.pem"))
        began = time.monotonic()
        with pytest.raises(UnavailableError, match=rf"no broker answers at localhost:{port} .*timed out"):
            silent.connect("localhost", port, 0.2)
        assert time.monotonic() - began < ANSWER_S_MAX / 4
    with pytest.raises(UnavailableError, match=rf"127\.0\.0\.1:{port} \(Connection refused\)") as caught:
        security_of({}).connect("127.0.0.1", port, ANSWER_S_MAX)
    assert caught.value.retry_after_s == 1.0


@pytest.mark.parametrize("host", ["", "x" * 64, "no.such.host.invalid", ".leading", "a\0b"])
def test_a_name_that_is_none_is_an_answer_too(host: str) -> None:
    with pytest.raises(UnavailableError, match="no broker answers"):
        over_tls().connect(host or "..", 9, 1.0)


def test_all_addresses_of_a_name_are_tried(monkeypatch: pytest.MonkeyPatch) -> None:
    """Goal: one address that refuses and one of a kind this machine does not have are not the end."""
    with serving(lambda connection: connection.sendall(b"hello")) as port:
        tcp = (socket.SOCK_STREAM, socket.IPPROTO_TCP, "")
        found = [(4711, *tcp, ("x", port)), *((socket.AF_INET, *tcp, (f"127.0.0.{n}", port)) for n in (2, 1))]
        monkeypatch.setattr(socket, "getaddrinfo", lambda *_: found)
        with closing(security_of({}).connect("two.addresses", port, ANSWER_S_MAX)) as connection:
            assert connection.recv(5) == b"hello"
            assert connection.getpeername() == ("127.0.0.1", port)
        monkeypatch.setattr(socket, "getaddrinfo", lambda *_: found[:2])
        with pytest.raises(UnavailableError, match="Connection refused"):
            security_of({}).connect("one.address", port, ANSWER_S_MAX)


def test_requests_leave_at_once_and_dead_ends_are_noticed() -> None:
    with serving(until_closed) as port:
        wide = security_of({"socket.send.buffer.bytes": 262_144, "socket.nagle.disable": "false"})
        with closing(wide.connect("127.0.0.1", port, ANSWER_S_MAX)) as connection:
            assert connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
            assert connection.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)
            assert connection.getsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF) >= 262_144


# --- a real broker ---------------------------------------------------------------------------------------

ODD_USER, ODD_PASSWORD = "o=d,d", "pässwörd, = €"
SESSION_MS = 60_000


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedBroker]:
    """All mechanisms on one listener; only sessions by SCRAM-SHA-256 end. About 300 MB for this module."""
    module = "org.apache.kafka.common.security"
    properties = {
        "sasl.enabled.mechanisms": "PLAIN,SCRAM-SHA-256,SCRAM-SHA-512",
        "listener.name.client.plain.sasl.jaas.config": (
            f'{module}.plain.PlainLoginModule required user_ann="{PASSWORD}";'
        ),
        "listener.name.client.scram-sha-256.connections.max.reauth.ms": str(SESSION_MS),
    }
    jaas = f"{module}.scram.ScramLoginModule required;"
    with EmbeddedBroker(tmp_path_factory.mktemp("secured"), jaas=jaas, properties=properties) as broker:
        admin = AdminClient({"bootstrap.servers": broker.internal_bootstrap})
        for user, kind, password in (
            ("ann", ScramMechanism.SCRAM_SHA_256, PASSWORD),
            ("ann", ScramMechanism.SCRAM_SHA_512, PASSWORD),
            (ODD_USER, ScramMechanism.SCRAM_SHA_512, ODD_PASSWORD),
        ):
            upsert = UserScramCredentialUpsertion(user, ScramCredentialInfo(kind, 8192), password.encode())
            admin.alter_user_scram_credentials([upsert])[user].result(ANSWER_S_MAX)
        yield broker


class Conversation:
    """Requests over one connection: header version 1, and nothing about api versions."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection
        self._numbers = itertools.count()

    def exchange(self, key: int, version: int, body: bytes) -> bytes:
        number = next(self._numbers)
        request = struct.pack(">hhi", key, version, number) + text("test") + body
        self._connection.sendall(struct.pack(">i", len(request)) + request)
        (size,) = struct.unpack(">i", self._read(4))
        response = self._read(size)
        assert struct.unpack_from(">i", response) == (number,)
        return response[4:]

    def _read(self, size: int) -> bytes:
        parts = b""
        while len(parts) < size:
            more = self._connection.recv(size - len(parts))
            if not more:
                raise ConnectionResetError("the broker closed the connection")
            parts += more
        return parts


def log_in(bootstrap: str, security: Security) -> float | None:
    """And use it: a session that the broker only seems to have accepted is closed at the next request."""
    host, _, port = bootstrap.partition(":")
    with closing(security.connect(host, int(port), ANSWER_S_MAX)) as connection:
        conversation = Conversation(connection)
        lifetime_s = security.authenticate(conversation.exchange)
        metadata = conversation.exchange(3, 4, struct.pack(">ib", 0, 0))  # of no topic
        assert len(metadata) > 8
        return lifetime_s


def log_in_once_known(bootstrap: str, security: Security) -> float | None:
    """The controller has a user first; the broker learns of it a moment later."""
    until = time.monotonic() + ANSWER_S_MAX
    while True:
        try:
            return log_in(bootstrap, security)
        except PermissionDenied:
            if time.monotonic() > until:
                raise
            time.sleep(0.05)


@pytest.mark.broker
def test_a_broker_accepts_plain(broker: EmbeddedBroker) -> None:
    assert log_in(broker.bootstrap, secured("PLAIN")) is None


@pytest.mark.broker
def test_a_broker_accepts_scram_and_says_how_long(broker: EmbeddedBroker) -> None:
    lifetime_s = log_in_once_known(broker.bootstrap, secured("SCRAM-SHA-256"))
    assert lifetime_s is not None
    assert 0 < lifetime_s <= SESSION_MS / 1000
    assert log_in_once_known(broker.bootstrap, secured("SCRAM-SHA-512")) is None
    odd = secured("SCRAM-SHA-512", ODD_USER, ODD_PASSWORD)
    assert log_in_once_known(broker.bootstrap, odd) is None


@pytest.mark.broker
@pytest.mark.parametrize("mechanism", ["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"])
@pytest.mark.parametrize("user", ["ann", "nobody"])
def test_a_broker_refuses_a_wrong_password_and_a_stranger(
    broker: EmbeddedBroker, mechanism: str, user: str
) -> None:
    wrong = "not " + PASSWORD
    with pytest.raises(PermissionDenied, match=f"refused the credentials of '{user}'") as caught:
        log_in(broker.bootstrap, secured(mechanism, user, wrong))
    assert_hidden(caught.value, wrong)


@pytest.mark.broker
def test_a_listener_without_sasl_says_so(broker: EmbeddedBroker) -> None:
    with pytest.raises(PermissionDenied, match="expects no credentials at this port"):
        log_in(broker.internal_bootstrap, secured())


@pytest.mark.broker
def test_tls_towards_a_listener_without_it_ends_in_words(broker: EmbeddedBroker) -> None:
    host, _, port = broker.bootstrap.partition(":")
    with pytest.raises(RefoldError, match=r"kafka\.security_protocol"):
        over_tls().connect(host, int(port), ANSWER_S_MAX)
