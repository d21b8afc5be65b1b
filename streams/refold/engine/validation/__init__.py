"""Is an intact local copy what its changelogs say? Found out once per copy, while it is served (rules V1, V2
of docs/internals/recovery.md).

:mod:`compare` (pure), :mod:`scratch` (what the log says, on disk), :mod:`reading` (one copy, on a thread),
:mod:`service` (the worker's part).
"""

from __future__ import annotations
