"""The pinned jars: a committed lock in, a verified class path out.

Resolution happened once, when the lock was written (:mod:`refold.broker.relock`). A start only compares
bytes with the lock, so it needs no network and no Maven metadata once the cache is filled.
"""

from __future__ import annotations

import hashlib
import json
import os
from dataclasses import dataclass
from functools import cache
from importlib import resources
from pathlib import Path
from typing import Final

from refold.broker.locks import exclusive
from refold.errors import ConfigError

#: The broker the lock describes. Changing it means running ``python -m refold.broker.relock``.
KAFKA_VERSION: Final = "4.4.0"
#: slf4j-simple must match the slf4j-api 1.7 that Kafka brings. Without a binding the broker logs nothing
#: at all, not even why it does not start.
ROOTS: Final = (f"org.apache.kafka:kafka_2.13:{KAFKA_VERSION}", "org.slf4j:slf4j-simple:1.7.36")
LOCK_NAME: Final = "jars.lock.json"

#: How long to wait for another process that fills the same cache. 45 MB at 100 kB/s takes 450 s.
CACHE_WAIT_S_MAX: Final = 600.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Jar:
    coordinate: str  # group:artifact:version
    size: int  # bytes
    sha256: str

    @property
    def file_name(self) -> str:
        _, artifact, version = self.coordinate.split(":")
        return f"{artifact}-{version}.jar"

    @property
    def maven_path(self) -> Path:
        group, artifact, version = self.coordinate.split(":")
        return Path(*group.split("."), artifact, version, self.file_name)

    def matches(self, path: Path) -> bool:
        """Whether ``path`` holds exactly the pinned bytes. Reads the file; false when it is absent."""
        try:
            if path.stat().st_size != self.size:
                return False
            with path.open("rb") as file:
                return hashlib.file_digest(file, "sha256").hexdigest() == self.sha256
        except FileNotFoundError:
            return False


@cache
def locked_jars() -> tuple[Jar, ...]:
    """The jars of the committed lock, in class path order."""
    lock = json.loads(resources.files(__package__).joinpath(LOCK_NAME).read_text("utf-8"))
    if lock["roots"] != list(ROOTS):
        raise ConfigError(
            f"{LOCK_NAME} was made for {lock['roots']}, this version runs {list(ROOTS)}. "
            "Run `python -m refold.broker.relock`."
        )
    return tuple(Jar(**row) for row in lock["jars"])


def cache_directory() -> Path:
    """``REFOLD_CACHE``, or ``~/.cache/refold``."""
    return Path(os.environ.get("REFOLD_CACHE") or "~/.cache/refold").expanduser()


def classpath() -> str:
    """The verified class path; fills the cache first where it has to.

    Blocks for the first download (about 45 MB); afterwards for the time of hashing the cached jars
    (about 0.1 s). With a complete cache nothing touches the network.

    Raises:
        ConfigError: a downloaded jar does not have its pinned sha256, or ``jgo`` is not installed.
        UnavailableError: the repository does not answer, or another process fills the cache too slowly.
        StorageError: the cache cannot be written.
    """
    home = cache_directory() / "broker" / f"kafka-{KAFKA_VERSION}"
    jars = locked_jars()
    if any(not jar.matches(home / jar.file_name) for jar in jars):
        with exclusive(home / ".lock", wait_s_max=CACHE_WAIT_S_MAX, purpose="the download of the broker"):
            from refold.broker.fetch import fetch  # a complete cache needs no download code

            if missing := [jar for jar in jars if not jar.matches(home / jar.file_name)]:
                fetch(missing, home)
    return os.pathsep.join(str(home / jar.file_name) for jar in jars)
