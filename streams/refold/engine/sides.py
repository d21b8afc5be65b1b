"""The owners of side rows (:mod:`refold.engine.side`) of one worker, together."""

from __future__ import annotations

from refold.engine.assignment import Assignment
from refold.engine.generations import Generations
from refold.engine.side import SideCache
from refold.engine.timers import Timers
from refold.engine.usage import Usages
from refold.topology.names import TopicNames


class Sides:
    def __init__(self, topics: TopicNames, assignment: Assignment) -> None:
        self.generations = Generations(topics, assignment)
        self.usages = Usages(assignment)
        self.timers = Timers()
        #: Those that remember something between commits.
        self._caches: tuple[SideCache, ...] = (self.generations, self.usages, self.timers)

    def discard_partition(self, partition: int) -> None:
        """The partition is given up, or restored anew: nothing of it is known any more."""
        for cache in self._caches:
            cache.discard_partition(partition)
