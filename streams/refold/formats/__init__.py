"""Providers' message formats, sources of recorded conversations, and contexts.

``openai``, ``openai_responses``, ``anthropic``, ``otel``: a provider's message <-> a message body, lossless.
``context``, ``validate``: what a model is shown of a session, and the providers' rules it keeps.
``streams``: a provider's token stream -> deltas -> a message body.
``sources``, ``export``, ``counts``: recorded files to events and back.
"""

from __future__ import annotations
