"""The OpenAI Agents SDK's ``Session`` on refold (docs/guides/openai-agents.md).

Nothing here imports the Agents SDK: its ``Session`` is a protocol, and items are plain dicts.
"""

from __future__ import annotations

from refold.integrations.openai_agents.session import RefoldSession

__all__ = ["RefoldSession"]
