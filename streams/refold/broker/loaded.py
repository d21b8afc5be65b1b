"""``python -m refold.broker.loaded``: keep what a JVM of ours loads at its start; the next ones need not.

Most of a broker's start is reading, checking and linking some 8 000 classes, and the JVM of the wheel comes
without an archive even of its own. With one (JEP 483, 69 MB beside the jars) a start takes 1.3 s of CPU
instead of 2.8, and the formatting before it 0.8 instead of 1.2. Making it takes about 10 s of CPU, so whoever
starts one broker does not; the test runner, which starts well over a hundred, does.

It is an archive of the jars it was made with and of nothing else: the JVM compares their sizes and times, its
own version and its options, and goes on without a word as if there were none when one of them differs.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Final

from refold.broker.embedded import EmbeddedBroker
from refold.broker.jars import CACHE_WAIT_S_MAX, classpath
from refold.broker.java import archive, common_options, java
from refold.broker.locks import exclusive
from refold.errors import RefoldError, UnavailableError

#: 5 s on two idle cores.
MAKING_S_MAX: Final = 300.0
#: The JVM only opens the archive.
CHECK_S_MAX: Final = 60.0


def usable() -> bool:
    """Whether the JVM takes what is there. Blocks a tenth of a second."""
    path = archive()
    if not path.exists():
        return False
    opened = subprocess.run(
        [
            str(java()),
            *common_options(),
            f"-XX:AOTCache={path}",
            "-XX:AOTMode=on",
            "-cp",
            classpath(),
            "--version",
        ],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        timeout=CHECK_S_MAX,
        check=False,
    )
    return opened.returncode == 0


def make() -> bool:
    """Make it unless a usable one is there; whether it was made. Blocks about 10 s.

    Raises:
        UnavailableError: the JVM makes none, or another process has tried for CACHE_WAIT_S_MAX.
        RefoldError: as of a broker's start.
    """
    with exclusive(
        archive().with_suffix(".lock"), wait_s_max=CACHE_WAIT_S_MAX, purpose="the archive of loaded classes"
    ):
        if usable():
            return False
        archive().unlink(missing_ok=True)
        with tempfile.TemporaryDirectory(dir=archive().parent) as scratch:
            seen, made = Path(scratch, "seen"), Path(scratch, "made")
            recording = ("-XX:AOTMode=record", f"-XX:AOTConfiguration={seen}", "-Xlog:aot=off")
            with EmbeddedBroker(Path(scratch, "broker"), jvm_options=recording) as broker:
                _use(broker.bootstrap)
            done = subprocess.run(
                [
                    str(java()),
                    *common_options(),
                    "-XX:AOTMode=create",
                    f"-XX:AOTConfiguration={seen}",
                    f"-XX:AOTCache={made}",
                    "-cp",
                    classpath(),
                ],
                stdin=subprocess.DEVNULL,
                capture_output=True,
                timeout=MAKING_S_MAX,
                check=False,
            )
            if done.returncode != 0 or not made.exists():
                raise UnavailableError(
                    f"the JVM makes no archive of loaded classes (exit {done.returncode}): "
                    f"{done.stderr.decode(errors='replace')[-500:]}"
                )
            made.replace(archive())
    return True


def _use(bootstrap: str) -> None:
    """What tests do all the time: a topic, a transaction, a group."""
    from confluent_kafka import Consumer, KafkaException, Producer
    from confluent_kafka.admin import AdminClient, NewTopic

    where = {"bootstrap.servers": bootstrap, "log_level": 0}
    client = AdminClient(where)
    client.create_topics([NewTopic("t", 4, config={"cleanup.policy": "compact"})])["t"].result(60)
    producer = Producer({**where, "transactional.id": "t"})
    producer.init_transactions(60)
    consumer = Consumer({**where, "group.id": "t", "auto.offset.reset": "earliest"})
    consumer.subscribe(["t"])
    try:
        producer.begin_transaction()
        producer.produce("t", b"x", b"k")
        producer.commit_transaction(60)
        message = consumer.poll(60)
        if message is None or message.error() is not None:
            raise UnavailableError("the broker whose classes were to be kept does not hand out a record")
        consumer.commit(message, asynchronous=False)
    except KafkaException as error:
        raise UnavailableError(f"the broker whose classes were to be kept does not work: {error}") from error
    finally:
        consumer.close()


def main() -> int:
    """0 also where none can be made: everything works without, only slower."""
    try:
        if make():
            print(f"kept what a broker loads at its start in {archive()}", file=sys.stderr)
    except (RefoldError, OSError, subprocess.SubprocessError) as error:
        print(f"brokers start without an archive of loaded classes: {error}", file=sys.stderr)
    return os.EX_OK


if __name__ == "__main__":
    raise SystemExit(main())
