"""The gateway as a process of its own."""

from __future__ import annotations

from pathlib import Path

from refold.ops.effects.plan import EffectsPlan
from refold.ops.fleet.listening import ListeningProcess


class GatewayProcess(ListeningProcess):
    """:mod:`refold.ops.effects.gateway`, and where it writes its ledger."""

    def __init__(self, plan: EffectsPlan, directory: Path) -> None:
        self.ledger = directory / "ledger.jsonl"
        options = [
            f"--seed={plan.seed}",
            f"--conversations={plan.conversations}",
            f"--ledger={self.ledger}",
        ]
        if plan.sabotage == "lookup-not-authoritative":
            options.append("--keeps-keys-open")
        super().__init__("gateway", directory, "refold.ops.effects.gateway", options)
