"""First run only: bring the missing jars into the cache, through jgo, and refuse any other bytes.

A jar is downloaded beside the cache, hashed, and moved in by one rename: the cache never holds a partial
or unverified file, whatever kills us.
"""

from __future__ import annotations

import os
import shutil
import tempfile
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from refold.broker.jars import KAFKA_VERSION, Jar
from refold.broker.progress import Progress, megabytes
from refold.errors import ConfigError, RefoldError, StorageError, UnavailableError

#: Seconds without a byte before a transfer counts as dead.
STALL_S_MAX: Final = 30
#: Attempts per jar; pauses of 0.5 s and 1 s between them ride out a dropped connection, not an outage.
ATTEMPTS_MAX: Final = 3
#: Enough to hide the round trips of 45 small files, few enough to stay polite.
PARALLEL_MAX: Final = 4


def fetch(jars: Sequence[Jar], home: Path) -> None:
    """Put ``jars`` into ``home``. Blocks until all are there; progress goes to stderr.

    Raises:
        ConfigError: bytes that do not match the lock, or ``jgo`` is missing.
        UnavailableError: the repository does not answer or does not have a jar.
        StorageError: the disk is full or not writable.
    """
    jars = [jar for jar in jars if not _copied_from_maven_home(jar, home)]
    if not jars:
        return
    total = sum(jar.size for jar in jars)
    title = f"Apache Kafka {KAFKA_VERSION}: downloading {len(jars)} jar(s), {megabytes(total)}, into {home}"
    try:
        with (
            tempfile.TemporaryDirectory(dir=home, prefix="fetch-") as staging,
            Progress(title, total) as progress,
            ThreadPoolExecutor(PARALLEL_MAX) as pool,
        ):
            context = _maven(Path(staging), progress)
            work = [pool.submit(_fetch_one, context, jar, home) for jar in jars]
            try:
                for future in work:
                    future.result()
            except BaseException:
                pool.shutdown(wait=False, cancel_futures=True)
                raise
    except OSError as error:
        raise StorageError(
            f"cannot write the jars into {home}: {error.strerror or error}. "
            "Free some space or set REFOLD_CACHE to another directory."
        ) from error


def _maven(staging: Path, progress: Progress) -> Any:
    try:
        from jgo.maven import MavenContext, PythonResolver
    except ImportError as error:
        raise ConfigError(
            f"the embedded broker needs the package {error.name}. Install it with "
            "`pip install 'refold[broker]'`, or use a running Kafka with --bootstrap."
        ) from error

    @contextmanager
    def count(name: str, size: int) -> Iterator[Any]:
        yield progress.add

    # Unset: jgo's own default repository. A directory is a repository on disk (air-gapped machines).
    repository = os.environ.get("REFOLD_MAVEN_REPO", "")
    local = [Path(repository).expanduser()] if repository and "://" not in repository else []
    return MavenContext(
        repo_cache=staging,
        resolver=PythonResolver(progress_callback=count),
        local_repos=local,
        remote_repos={} if local else {"refold": repository.rstrip("/")} if repository else None,
        timeout=STALL_S_MAX,
    )


def _fetch_one(context: Any, jar: Jar, home: Path) -> None:
    group, artifact, version = jar.coordinate.split(":")
    for attempt in range(1, ATTEMPTS_MAX + 1):
        try:
            path = Path(context.project(group, artifact).at_version(version).artifact().resolve())
            break
        except Exception as error:  # jgo raises requests' errors, RuntimeError and AssertionError alike
            (context.repo_cache / jar.maven_path).unlink(missing_ok=True)  # a partial file would be reused
            if isinstance(error, OSError) and error.errno is not None:
                raise
            if attempt == ATTEMPTS_MAX:
                raise _unreachable(context, jar, error) from error
            time.sleep(0.5 * attempt)
    if not jar.matches(path):
        raise ConfigError(
            f"{jar.coordinate} from {_source(context)} does not have the pinned sha256 {jar.sha256} "
            f"({jar.size} bytes expected, {path.stat().st_size} came). The file was not used. A proxy or "
            "mirror may rewrite downloads: set REFOLD_MAVEN_REPO to a repository you trust and try again."
        )
    _move_in(path, home / jar.file_name)


def _unreachable(context: Any, jar: Jar, error: Exception) -> RefoldError:
    return UnavailableError(
        f"cannot get {jar.coordinate} from {_source(context)}: {error}. "
        "Check the network or proxy (HTTPS_PROXY), set REFOLD_MAVEN_REPO to a repository you can reach "
        "(a URL or a directory in Maven layout), or point REFOLD_CACHE to a cache filled elsewhere."
    )


def _source(context: Any) -> str:
    return ", ".join([*map(str, context.local_repos), *context.remote_repos.values()])


def _copied_from_maven_home(jar: Jar, home: Path) -> bool:
    """A Java developer has many of these already: take them when, and only when, the hash agrees."""
    source = Path(os.environ.get("M2_REPO") or "~/.m2/repository").expanduser() / jar.maven_path
    if not jar.matches(source):
        return False
    _move_in(source, home / jar.file_name)
    return True


def _move_in(source: Path, target: Path) -> None:
    partial = target.with_suffix(".partial")  # same directory, so that the rename is atomic
    shutil.copyfile(source, partial)
    partial.replace(target)
