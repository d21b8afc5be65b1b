"""What the demo runs on: a broker (unless one is given), topics, a registry, workers. Stays up until told.

``stack.json`` in the demo's directory says what runs, by pid and creation time, so that a later
``refold demo --down`` (or the next demo) stops exactly that and nothing else.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import subprocess
import sys
import time
import urllib.error
import urllib.request
import uuid
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from refold.broker import EmbeddedBroker
from refold.broker.ports import choose, is_free
from refold.broker.process import Identity
from refold.errors import UnavailableError
from refold.ops.fleet import Fleet
from refold.ops.fleet.environment import place_of
from refold.settings import Settings
from refold.topology import Topology

Say = Callable[[str], None]

#: Kafka's usual port, and refold's default bootstrap: the commands to try need no address then.
USUAL_PORT: Final = 9092
PARTITIONS: Final = 8
#: Short, so that a take-over fits into the minute; a production setting must let a restart fit (default 30
#: s).
SESSION_TIMEOUT_MS: Final = 6_000
#: The registry answers within a second of its start (imports).
REGISTRY_S_MAX: Final = 20.0
STATE_FILE: Final = "stack.json"


@dataclass(slots=True)
class Stack:
    """A running stack. ``settings`` are those of the run: bootstrap, prefix, partitions."""

    directory: Path
    settings: Settings
    fleet: Fleet
    broker: EmbeddedBroker | None
    registry_url: str
    registry: subprocess.Popen[bytes]
    usual: bool
    _extra: list[Identity] = field(default_factory=list)

    @classmethod
    def up(cls, directory: Path, settings: Settings, bootstrap: str | None, workers: int, say: Say) -> Stack:
        """Stop what an earlier demo left, then start everything but the workers' first commit. Blocks.

        With ``bootstrap`` None a broker is started in ``directory`` with fresh data. Raises what the broker,
        the topology or the registry raise; whatever was started by then is stopped again.
        """
        down(directory, say)
        shutil.rmtree(directory, ignore_errors=True)
        directory.mkdir(parents=True)
        broker: EmbeddedBroker | None = None
        processes: list[subprocess.Popen[bytes]] = []
        try:
            prefix = settings.topic_prefix
            if bootstrap is None:
                port = USUAL_PORT if is_free(USUAL_PORT) else None
                say("starting a Kafka broker (the first time it is downloaded, about 100 MB)")
                broker = EmbeddedBroker(directory / "broker", port=port, detached=True)
                broker.start()
                bootstrap = broker.bootstrap
            else:
                prefix = f"refold-demo-{uuid.uuid4().hex[:8]}"
            # As flags: what the user has set otherwise (security, blob store) stays.
            changed = settings.model_copy(
                update={
                    "topic_prefix": prefix,
                    "partitions": PARTITIONS,
                    "kafka": settings.kafka.model_copy(update={"bootstrap": bootstrap}),
                }
            )
            Topology.of(changed).apply(changed)
            registry_port = choose(None)
            registry = _serve_registry(registry_port, directory / "registry.log")
            processes.append(registry)
            _wait_for_registry(registry_port, registry, directory / "registry.log")
            fleet = Fleet(workers, directory / "workers", _worker_settings(changed), detached=True)
        except BaseException:
            for process in processes:
                process.kill()
                process.wait()
            if broker is not None:
                broker.stop()
            raise
        usual = broker is not None and bootstrap.endswith(f":{USUAL_PORT}")
        url = f"http://127.0.0.1:{registry_port}"
        return cls(directory, changed, fleet, broker, url, registry, usual)

    def remember(self) -> None:
        """Write down what runs now. Call again after workers were restarted."""
        rows = [_row("registry", self.registry.pid)]
        rows += [_row(w.name, w.process.pid) for w in self.fleet.workers if w.alive and w.process is not None]
        state: dict[str, Any] = {
            "bootstrap": self.settings.kafka.bootstrap,
            "prefix": self.settings.topic_prefix,
            "registry": self.registry_url,
            "broker": str(self.broker.directory) if self.broker is not None else None,
            "processes": rows,
        }
        (self.directory / STATE_FILE).write_text(json.dumps(state, indent=2))

    def stop(self) -> None:
        self.fleet.stop()
        self.registry.terminate()
        self.registry.wait()
        if self.broker is not None:
            self.broker.stop()
        (self.directory / STATE_FILE).unlink(missing_ok=True)


def down(directory: Path, say: Say) -> bool:
    """Stop the stack an earlier run left in ``directory``. False when none is known there."""
    file = directory / STATE_FILE
    try:
        state = json.loads(file.read_text())
    except (OSError, ValueError):
        state = {"processes": [], "broker": str(directory / "broker")}
    stopped = 0
    for row in state["processes"]:
        identity = Identity(pid=row["pid"], created=row["created"])
        if identity.alive:
            identity.stop()
            stopped += 1
    if state["broker"] is not None and Path(state["broker"]).exists():
        stopped += EmbeddedBroker(Path(state["broker"]), detached=True).stop()
    file.unlink(missing_ok=True)
    if stopped:
        say(f"stopped the earlier demo ({stopped} processes)")
    return stopped > 0


def _row(name: str, pid: int) -> dict[str, Any]:
    return {"name": name, "pid": pid, "created": Identity.of(pid).created}


def _worker_settings(settings: Settings) -> dict[str, str]:
    return {
        **place_of(settings),
        "REFOLD_WORKER__SESSION_TIMEOUT_MS": str(SESSION_TIMEOUT_MS),
    }


def _serve_registry(port: int, log_path: Path) -> subprocess.Popen[bytes]:
    with log_path.open("ab") as log:
        return subprocess.Popen(
            [sys.executable, "-m", "refold.cli.main", "registry", "serve", "--port", str(port)],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            env=dict(os.environ),
            start_new_session=True,
        )


def _wait_for_registry(port: int, process: subprocess.Popen[bytes], log_path: Path) -> None:
    deadline = time.monotonic() + REGISTRY_S_MAX
    while time.monotonic() < deadline and process.poll() is None:
        with contextlib.suppress(urllib.error.URLError, OSError):
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/subjects", timeout=2) as answer:
                if answer.status == 200:
                    return
        time.sleep(0.1)
    raise UnavailableError(f"the registry did not answer within {REGISTRY_S_MAX:.0f} s: see {log_path}")
