"""Where results go: the evals topic, or tables of a PostgreSQL."""

from __future__ import annotations
