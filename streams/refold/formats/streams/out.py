"""A streamed message back in its provider's own shape."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from refold.errors import UsageError
from refold.formats import anthropic, openai, openai_responses
from refold.formats.streams import blocks
from refold.formats.streams.items import items_out


def message_out(body: Mapping[str, Any], format: str | None = None) -> Any:  # noqa: A002 - the SDK's word
    """What the provider's API without streaming would have given, value by value.

    A message; for ``openai-responses`` the list of output items. ``format`` is needed only for a body without
    ``extra_format`` (bare text). Raises UsageError for a format that has no shape of its own.
    """
    named = format or body["extra_format"]
    if named in (openai.FORMAT, "cohere"):
        return openai.message_out(body)
    if named == anthropic.FORMAT:
        return anthropic.message_out(body)
    if named in (openai_responses.FORMAT, "openai-responses"):
        return items_out(body)
    if named in (blocks.BEDROCK, blocks.GOOGLE, blocks.INTERACTIONS):
        return blocks.message_out(body, named)
    raise UsageError(
        f"a message of format {named!r} has no provider's shape; name the format whose shape you want"
    )
