"""The summarizer that the settings name, and ending one."""

from __future__ import annotations

from typing import TYPE_CHECKING

from refold.client.summaries.extractive import Extractive
from refold.client.summaries.openai import OpenAICompatible

if TYPE_CHECKING:
    from refold.client.summaries.protocol import Summarizer
    from refold.settings import Settings


def summarizer_of(settings: Settings) -> Summarizer:
    """Of ``[summarizer]``: extractive, or an endpoint."""
    wanted = settings.summarizer
    if wanted.provider == "extractive":
        return Extractive()
    return OpenAICompatible(
        wanted.base_url,
        # The settings refuse the provider without a model.
        wanted.model or "",
        api_key=wanted.api_key,
        timeout_ms=wanted.timeout_ms,
        max_tokens=wanted.max_tokens,
    )


async def close(summarizer: Summarizer) -> None:
    """End its connections, where it has some."""
    if isinstance(summarizer, OpenAICompatible):
        await summarizer.close()
