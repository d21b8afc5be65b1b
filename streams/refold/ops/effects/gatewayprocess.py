"""Start the gateway as a process of its own, and stop it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Final

from refold.errors import UnavailableError
from refold.ops.effects.plan import EffectsPlan

#: It ends when its stdin does; a second is ample for closing a file.
STOP_S_MAX: Final = 5.0


class GatewayProcess:
    """``start`` blocks until it listens. It dies with its starter: the pipe to its stdin closes."""

    def __init__(self, plan: EffectsPlan, directory: Path) -> None:
        self._plan = plan
        self._log = directory / "gateway.log"
        self.ledger = directory / "ledger.jsonl"
        self._process: subprocess.Popen[bytes] | None = None
        self.url = ""

    def start(self) -> None:
        """Raises :class:`UnavailableError` quoting its log when it does not come up."""
        plan = self._plan
        command = [
            sys.executable,
            "-m",
            "refold.ops.effects.gateway",
            f"--seed={plan.seed}",
            f"--conversations={plan.conversations}",
            f"--ledger={self.ledger}",
        ]
        if plan.sabotage == "lookup-not-authoritative":
            command.append("--keeps-keys-open")
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, start_new_session=True
            )
        out = self._process.stdout
        line = out.readline() if out is not None else b""
        if not line.strip().isdigit():
            self.stop()
            tail = self._log.read_text(errors="replace")[-1_000:]
            raise UnavailableError(f"the gateway process did not start. The end of its log:\n{tail}")
        self.url = f"http://127.0.0.1:{int(line)}"

    def stop(self) -> None:
        process, self._process = self._process, None
        if process is None:
            return
        for stream in (process.stdin, process.stdout):
            if stream is not None:
                stream.close()
        try:
            process.wait(STOP_S_MAX)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
