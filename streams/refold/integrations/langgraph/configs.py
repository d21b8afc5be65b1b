"""LangGraph's configs, and what they name."""

from __future__ import annotations

from langchain_core.runnables import RunnableConfig

from refold.errors import UsageError


def thread_of(config: RunnableConfig) -> str:
    """Raises UsageError where none is named."""
    thread = config.get("configurable", {}).get("thread_id")
    if thread is None:
        raise UsageError(
            "config['configurable'] has no thread_id: it names the session that keeps the thread"
        )
    return str(thread)


def ns_of(config: RunnableConfig) -> str:
    return str(config["configurable"].get("checkpoint_ns") or "")


def config_of(thread: str, ns: str, id_: str) -> RunnableConfig:
    return {"configurable": {"thread_id": thread, "checkpoint_ns": ns, "checkpoint_id": id_}}
