"""A checkpoint store that gives so many bytes a second: ``slow://<directory>``, a directory of this machine.

Registered with fsspec as any package registers its own, by an entry point; :func:`installed` makes the
directory that a worker's ``PYTHONPATH`` needs for it. What ``SLOW_BYTES_PER_S`` says holds for all readers of
a process together; a file named in ``SLOW_GATE`` that is there lets everything through at once.
"""

from __future__ import annotations

import os
import threading
import time
from pathlib import Path
from typing import Any

from fsspec.implementations.local import LocalFileSystem

#: A read of up to so much is free: manifests, and key filters of 50 000 sessions.
FREE_BYTES = 64 * 1024
REPO = Path(__file__).resolve().parents[2]
LOOK_S = 0.05
_LINE = threading.Lock()


def waited(size: int) -> None:
    """For as long as ``size`` bytes take, behind those who came before."""
    with _LINE:
        end = time.monotonic() + size / float(os.environ["SLOW_BYTES_PER_S"])
        gate = os.environ.get("SLOW_GATE")
        while (left := end - time.monotonic()) > 0:
            if gate is not None and Path(gate).exists():
                return
            time.sleep(min(left, LOOK_S))


class SlowFileSystem(LocalFileSystem):  # type: ignore[misc]
    protocol = "slow"

    def _open(self, path: str, mode: str = "rb", block_size: int | None = None, **options: Any) -> Any:
        opened = super()._open(path, mode, block_size, **options)
        if mode == "rb":
            read = opened.read

            def slowly(*arguments: Any) -> bytes:
                data: bytes = read(*arguments)
                if len(data) > FREE_BYTES:
                    waited(len(data))
                return data

            opened.read = slowly
        return opened


def installed(directory: Path, bytes_per_s: int, gate: Path | None = None) -> dict[str, str]:
    """The environment of a process that is to know ``slow://``."""
    dist = directory / "slow_store-1.dist-info"
    dist.mkdir(parents=True, exist_ok=True)
    (dist / "METADATA").write_text("Metadata-Version: 2.1\nName: slow-store\nVersion: 1\n")
    (dist / "entry_points.txt").write_text("[fsspec.specs]\nslow = bench.recovery.slow:SlowFileSystem\n")
    path = [str(directory), str(REPO), *filter(None, [os.environ.get("PYTHONPATH")])]
    environment = {"PYTHONPATH": os.pathsep.join(path), "SLOW_BYTES_PER_S": str(bytes_per_s)}
    return environment if gate is None else {**environment, "SLOW_GATE": str(gate)}
