"""A full disk, under the RocksDB of a worker and under the broker: a small tmpfs, filled to its last byte."""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import subprocess
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Final

from refold.broker import EmbeddedBroker
from refold.errors import StorageError
from refold.ops.faults.scenario import Scene
from refold.settings import Settings

WORKER_DISK_MIB: Final = 64
#: The broker's check at its start asks for 64 MiB; a run writes less than 50.
BROKER_DISK_MIB: Final = 192
BALLAST_CHUNK: Final = bytes(1024 * 1024)
#: A broker whose only log directory has failed stops itself.
BROKER_END_S_MAX: Final = 60.0
VICTIM: Final = "w0"


def unavailable() -> str | None:
    if os.geteuid() != 0:
        return "needs root: it mounts a small tmpfs"
    if shutil.which("mount") is None or shutil.which("umount") is None:
        return "needs mount and umount"
    probe = subprocess.run(["unshare", "-m", "true"], capture_output=True, check=False)
    return None if probe.returncode == 0 else "this system does not let root mount anything"


@contextlib.contextmanager
def _small_disk(directory: Path, mib: int) -> Iterator[Path]:
    directory.mkdir(parents=True, exist_ok=True)
    mount = ["mount", "-t", "tmpfs", "-o", f"size={mib}m", "refold-verify", str(directory)]
    done = subprocess.run(mount, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise StorageError(
            f"a small disk cannot be mounted: {done.stderr.strip()}. Run without this scenario."
        )
    try:
        yield directory
    finally:
        # Lazily: a process that is being killed may still hold files.
        subprocess.run(["umount", "-l", str(directory)], capture_output=True, check=False)


def _fill(ballast: Path) -> None:
    """A file that takes the rest."""
    with ballast.open("wb", buffering=0) as file:
        with contextlib.suppress(OSError):
            while True:
                file.write(BALLAST_CHUNK)
        with contextlib.suppress(OSError):
            while True:
                file.write(b"\0")


async def under_worker(scene: Scene) -> None:
    """Full under one worker, which is killed and must open its DBs again; then there is room again."""
    with _small_disk(scene.directory / "small", WORKER_DISK_MIB) as disk:
        stage = scene.stage()
        worker = stage.worker(VICTIM)
        worker.configure({"REFOLD_WORKER__DATA_DIR": str(disk / "data")})
        async with stage:
            async with scene.acting(stage):
                await scene.until("the worker on the small disk owns something", lambda: stage.owned(VICTIM))
                scene.held.add(VICTIM)
                ballast = disk / "ballast"
                scene.undo.append(partial(ballast.unlink, missing_ok=True))
                await asyncio.to_thread(_fill, ballast)
                scene.seen["free_bytes"] = shutil.disk_usage(disk).free
                worker.kill()
                worker.start()
                code = await scene.until("it ended on the full disk", lambda: worker.wait_end(0.1))
                scene.seen["exit_code"] = code
                ballast.unlink()
                worker.start()
                scene.held.discard(VICTIM)
                await scene.until_ready(stage)
    scene.gate(
        scene.seen.get("exit_code") == StorageError.exit_code, f"it said that the disk is full (exit "
        f"{StorageError.exit_code})",
    )  # fmt: skip


async def under_broker(scene: Scene) -> None:
    """Full under the only broker, which stops; then there is room again and it is started."""
    with _small_disk(scene.directory / "small", BROKER_DISK_MIB) as disk:
        broker = EmbeddedBroker(disk / "broker")
        with broker:
            stage = scene.stage(Settings(kafka={"bootstrap": broker.bootstrap}))
            async with stage, scene.acting(stage):
                await scene.until(
                    "both workers own something", lambda: len(set(stage.owners().values())) == 2
                )
                ballast = disk / "ballast"
                scene.undo.append(partial(ballast.unlink, missing_ok=True))
                await asyncio.to_thread(_fill, ballast)
                scene.seen["free_bytes"] = shutil.disk_usage(disk).free
                await scene.until(
                    "the broker stopped on the full disk", lambda: not broker.running, BROKER_END_S_MAX
                )
                ballast.unlink()
                await asyncio.to_thread(broker.start)
                scene.seen["broker_stopped"] = True
                await scene.until_ready(stage)
    scene.gate(bool(scene.seen.get("broker_stopped")), "the broker stopped on the full disk")
