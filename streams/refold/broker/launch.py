"""Format the data directory once, and spawn the broker. No waiting and no bookkeeping here."""

from __future__ import annotations

import base64
import fcntl
import shutil
import subprocess
import uuid
from collections.abc import Mapping
from typing import Final

import psutil

from refold.broker.diagnosis import explain
from refold.broker.java import BROKER_MAIN, command
from refold.broker.layout import Layout
from refold.broker.properties import render
from refold.errors import StorageError

#: A start writes about 1 MB, and index files are sparse 10 MiB each. Kafka stops the whole node when a
#: log directory fails, so it is not worth starting below this.
DISK_FREE_BYTES_MIN: Final = 64 * 1024 * 1024
FORMAT_S_MAX: Final = 180


def prepare(layout: Layout) -> None:
    """Make the directories. Raises StorageError when not writable or nearly full."""
    try:
        layout.temporary.mkdir(parents=True, exist_ok=True)
        layout.rotate_log()
        layout.log.touch()
    except OSError as error:
        raise StorageError(
            f"cannot use {layout.directory} for the broker: {error.strerror}. Choose a writable --dir."
        ) from error
    if (free := shutil.disk_usage(layout.directory).free) < DISK_FREE_BYTES_MIN:
        raise StorageError(
            f"the disk of {layout.directory} is full: {free / 1e6:.0f} MB free, "
            f"{DISK_FREE_BYTES_MIN / 1e6:.0f} MB needed. Free some space, or choose another --dir."
        )


def require_unused(layout: Layout) -> None:
    """Raise StorageError when a broker that state.json does not know uses the data.

    Kafka takes this lock late, after its controller has already written to the metadata log, so the
    second broker would damage the first one before it noticed.
    """
    try:
        with (layout.data / ".lock").open("r+") as file:
            fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except FileNotFoundError:
        return
    except BlockingIOError as error:
        users = [p.pid for p in psutil.process_iter(["cmdline"]) if _runs(p, layout)]
        who = f"Stop it with `kill {users[0]}`" if users else "Find it with `pgrep -f kafka.Kafka`, stop it"
        raise StorageError(
            f"another Kafka process uses {layout.data}, although {layout.state.name} does not know it. "
            f"{who}, and start again."
        ) from error


def _runs(process: psutil.Process, layout: Layout) -> bool:
    return str(layout.properties) in (process.info["cmdline"] or ())


def cluster_id(layout: Layout) -> str | None:
    """The id of the formatted data, ``None`` when there is no data yet.

    Raises:
        StorageError: there is data, but not what a broker needs to open it.
    """
    if not layout.data.exists():
        return None
    try:
        lines = (layout.data / "meta.properties").read_text("utf-8").splitlines()
        return next(line.removeprefix("cluster.id=") for line in lines if line.startswith("cluster.id="))
    except (OSError, UnicodeDecodeError, StopIteration) as error:
        raise StorageError(
            f"the data in {layout.data} is damaged: its meta.properties is missing or unreadable. If you do "
            f"not need the data, run `refold broker down --wipe --dir {layout.directory}` and `up` again; "
            "otherwise restore that file from a copy of the directory."
        ) from error


def new_cluster_id() -> str:
    made = base64.urlsafe_b64encode(uuid.uuid4().bytes).decode().rstrip("=")
    # A leading dash would be read as an option.
    return "A" + made[1:] if made.startswith("-") else made


def format_data(
    layout: Layout, classpath: str, heap_mib: int, properties: Mapping[str, str], new_id: str | None = None
) -> str:
    """Format a new data directory and return its cluster id: ``new_id``, or a fresh one. Blocks about a
    second.

    The directory appears by a rename: killed half way, the next start formats again.
    """
    shutil.rmtree(layout.formatting, ignore_errors=True)
    new_id = new_id or new_cluster_id()
    file = layout.temporary / "format.properties"
    file.write_text(render({**properties, "log.dirs": str(layout.formatting.absolute())}), encoding="ascii")
    main = ("kafka.tools.StorageTool", "format", "--cluster-id", new_id, "--config", str(file))
    offset = layout.log.stat().st_size
    with layout.log.open("ab") as log:
        done = subprocess.run(
            command(layout, classpath, heap_mib, *main),
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            timeout=FORMAT_S_MAX,
            check=False,
        )
    if done.returncode != 0:
        raise explain(layout, from_byte=offset, what="the broker's data directory cannot be formatted")
    layout.formatting.rename(layout.data)
    return new_id


def spawn(
    layout: Layout,
    classpath: str,
    heap_mib: int,
    properties: Mapping[str, str],
    jvm_options: tuple[str, ...] | None = None,
) -> subprocess.Popen[bytes]:
    """Start the JVM in a session of its own: neither Ctrl-C nor a closed terminal reaches it."""
    layout.properties.write_text(render(properties), encoding="ascii")
    layout.properties.chmod(0o600)  # may hold credentials
    with layout.log.open("ab") as log:
        return subprocess.Popen(
            command(
                layout,
                classpath,
                heap_mib,
                BROKER_MAIN,
                str(layout.properties),
                jvm_options=jvm_options,
            ),
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            cwd=layout.directory,
            start_new_session=True,
        )
