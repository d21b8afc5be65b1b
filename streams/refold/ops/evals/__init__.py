"""Batch evaluation: a function over a file of samples, each result once, whatever dies meanwhile.

Rules (labels E): results and cursor commit together, and a second runner of a batch fences the first (E1);
resuming redoes nothing done and skips nothing failed (E2); sample ids are unique in a batch and its samples
are pinned by digest (E3). ``docs/guides/evaluation.md`` is the user's page.
"""

from __future__ import annotations

from refold.ops.evals.runner import EvalContext

__all__ = ["EvalContext"]
