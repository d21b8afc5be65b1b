"""``refold verify runs``: durable agents under deaths and a rolling deploy, against the outside world's book.

Agent processes (:mod:`.agent`) execute runs whose steps act on a world that is a process of its own
(:mod:`.world`) and remembers what really happened. Processes are killed, frozen and replaced (:mod:`.crew`);
then book, journal, state and work topic are compared (:mod:`.judge`).
"""

from __future__ import annotations
