"""Names that hold state: topics, group, transactional ids. They are API (``topology.lock.json``).

Standard library only, so that the SDK can name a topic without loading the specification.
"""

from __future__ import annotations

from dataclasses import dataclass

DEFAULT_PREFIX = "refold"


@dataclass(frozen=True, slots=True)
class TopicNames:
    """Full names for one prefix: ``TopicNames("refold").journal == "refold.journal"``."""

    prefix: str = DEFAULT_PREFIX

    @property
    def inbox(self) -> str:
        return f"{self.prefix}.inbox"

    @property
    def journal(self) -> str:
        return f"{self.prefix}.journal"

    @property
    def state(self) -> str:
        return f"{self.prefix}.state"

    @property
    def history(self) -> str:
        return f"{self.prefix}.history"

    @property
    def rejected(self) -> str:
        return f"{self.prefix}.rejected"

    @property
    def batches(self) -> str:
        return f"{self.prefix}.batches"

    @property
    def generations(self) -> str:
        return f"{self.prefix}.generations"

    @property
    def review(self) -> str:
        return f"{self.prefix}.review"

    @property
    def work(self) -> str:
        return f"{self.prefix}.work"

    @property
    def evals(self) -> str:
        return f"{self.prefix}.evals"

    @property
    def group(self) -> str:
        """The workers' consumer group, which is also the application id."""
        return self.prefix

    def transactional_id(self, instance: str) -> str:
        return f"{self.prefix}-{instance}"

    def eval_transactional_id(self, batch: str) -> str:
        """Of whoever evaluates the batch: a second runner fences the first."""
        return f"{self.prefix}-eval-{batch}"
