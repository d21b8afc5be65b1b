"""Checkpoints of partition DBs in a remote store, and restoring from them.

One idea per module: :mod:`manifest` (what a checkpoint is), :mod:`remote` (the store), :mod:`retention` and
:mod:`schedule` (pure decisions), :mod:`publish` (upload), :mod:`fetch` (download, verified), :mod:`source`
(what a restore asks), :mod:`service` (the worker's part). Only the last two touch RocksDB,
through :mod:`refold.engine.store`; the command line uses the rest without it.
"""

from __future__ import annotations
