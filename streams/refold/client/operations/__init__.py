"""Operations on whole sessions: forks, states as of a seq, paths from history, pruning."""

from __future__ import annotations
