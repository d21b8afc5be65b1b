"""LangGraph's checkpointer on refold (docs/guides/langgraph.md). Needs the extra ``langgraph``."""

from __future__ import annotations

from refold.integrations.langgraph.saver import RefoldSaver

__all__ = ["RefoldSaver"]
