"""What is wrong with an address of a broker, in words."""

from __future__ import annotations

import socket

import pytest

from refold.errors import ConfigError
from refold.servers import addresses, why_nobody_answers
from refold.settings import load_settings


def test_what_librdkafka_takes_is_taken() -> None:
    assert addresses("a:1, b:65535") == [("a", 1), ("b", 65_535)]
    assert addresses("kafka") == [("kafka", 9092)]
    assert addresses("SSL://a:9093,[::1]:9092") == [("a", 9093), ("::1", 9092)]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "at least 1 character"),
        (" , ", "it is empty"),
        ("a:1,", "a comma too many"),
        ("a:word", "a port is a number from 1 to 65535"),
        ("a:", "a port is a number"),
        ("a:99999", "a port is a number"),
        (":9092", "is not host:port"),
        ("http://a:9092", "http:// is no protocol of Kafka's"),
        ("a b:9092", "is not host:port"),
        ("a:1:2", "is not host:port"),
    ],
)
def test_what_can_be_no_address_is_refused_before_anybody_waits(text: str, words: str) -> None:
    """ "No broker answers" after ten seconds was said of all of them."""
    with pytest.raises(ConfigError) as caught:
        load_settings(None, {"kafka.bootstrap": text})
    assert words in str(caught.value)


def test_why_nobody_answers_is_said_of_each() -> None:
    """Goal: a name nobody knows, a port where nothing listens and another service are told apart."""
    with socket.socket() as free, socket.socket() as taken:
        free.bind(("127.0.0.1", 0))
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        closed, other = free.getsockname()[1], taken.getsockname()[1]
        told = why_nobody_answers(f"..:1,127.0.0.1:{closed},127.0.0.1:{other}").split("; ")
    assert told[0].startswith("the name .. ")
    assert told[1] == f"nothing listens on 127.0.0.1:{closed}"
    assert told[2].startswith(f"127.0.0.1:{other} takes connections, but no Kafka")
