"""Who writes the assistant's words.

:class:`LocalModel` is a small deterministic model: the same conversation always gets the same words,
composed from the tool results, so two runs can be compared and no key is needed. :class:`EndpointModel`
asks a real OpenAI-compatible endpoint for the closing text of each turn (``REFOLD_DEMO_MODEL_URL``,
``…_NAME``, ``…_KEY``); which tools are called still comes from the data, because the ledger is compared
with it.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Mapping, Sequence
from typing import Any, Final, Protocol

import aiohttp

from refold.errors import UnavailableError

#: Words taken from one tool result; a long listing should not drown the conversation.
RESULT_WORDS_MAX: Final = 12
#: One completion of a real endpoint; the demo has a few hundred of them.
COMPLETION_S_MAX: Final = 60.0

_OPENERS: Final = ("Done.", "All set.", "Here is what I found.", "That is taken care of.", "Finished.")
_WORD: Final = re.compile(r"[\w.$#@/'-]+")


class Model(Protocol):
    """``announce`` precedes tool calls, ``close`` ends the turn."""

    name: str

    async def announce(self, transcript: Sequence[Mapping[str, Any]], tools: Sequence[str]) -> str: ...
    async def close(self, transcript: Sequence[Mapping[str, Any]], results: Sequence[str]) -> str: ...


class LocalModel:
    """Deterministic: text is a pure function of the user's words and the results."""

    name = "refold-local-1"

    async def announce(self, transcript: Sequence[Mapping[str, Any]], tools: Sequence[str]) -> str:
        return f"I will use {', '.join(dict.fromkeys(tools))}."

    async def close(self, transcript: Sequence[Mapping[str, Any]], results: Sequence[str]) -> str:
        if not results:
            return "I need nothing from the tools for this. Tell me how to go on."
        seed = hashlib.sha256("\x1f".join(results).encode()).digest()[0]
        parts = [_OPENERS[seed % len(_OPENERS)]]
        for result in results:
            words = _WORD.findall(result)
            tail = " and more" if len(words) > RESULT_WORDS_MAX else ""
            parts.append(f"The tool reports {' '.join(words[:RESULT_WORDS_MAX]) or 'success'}{tail}.")
        return " ".join(parts)


class EndpointModel:
    """Any OpenAI-compatible ``/chat/completions``. Raises :class:`UnavailableError` when it does not
    answer.
    """

    def __init__(self, url: str, name: str, key: str | None) -> None:
        self.name = name
        self._url = url.rstrip("/") + "/chat/completions"
        self._headers = {"Authorization": f"Bearer {key}"} if key else {}

    async def announce(self, transcript: Sequence[Mapping[str, Any]], tools: Sequence[str]) -> str:
        return await LocalModel().announce(transcript, tools)

    async def close(self, transcript: Sequence[Mapping[str, Any]], results: Sequence[str]) -> str:
        body = {"model": self.name, "messages": [dict(m) for m in transcript], "temperature": 0}
        timeout = aiohttp.ClientTimeout(total=COMPLETION_S_MAX)
        try:
            async with aiohttp.ClientSession(timeout=timeout, headers=self._headers) as http:
                async with http.post(self._url, json=body) as answer:
                    text = await answer.text()
                    if answer.status != 200:
                        raise UnavailableError(
                            f"model endpoint answered {answer.status}; check its name and key"
                        )
                    return str(json.loads(text)["choices"][0]["message"]["content"] or "")
        except (aiohttp.ClientError, TimeoutError, ValueError, LookupError) as err:
            raise UnavailableError(
                f"model endpoint {self._url} did not give a completion ({type(err).__name__}); unset "
                "REFOLD_DEMO_MODEL_URL to use the local model"
            ) from err


class SpokenWords:
    """Says again what another model said in one conversation: a real endpoint need not answer twice alike."""

    name = "spoken"

    def __init__(self, words: Sequence[str]) -> None:
        self._words = iter(words)

    async def announce(self, transcript: Sequence[Mapping[str, Any]], tools: Sequence[str]) -> str:
        return next(self._words)

    async def close(self, transcript: Sequence[Mapping[str, Any]], results: Sequence[str]) -> str:
        return next(self._words)


def model_from_environment() -> Model:
    """``REFOLD_DEMO_MODEL_URL`` (+ ``_NAME``, ``_KEY``) names a real endpoint; unset means the local
    model.
    """
    url = os.environ.get("REFOLD_DEMO_MODEL_URL")
    if not url:
        return LocalModel()
    name = os.environ.get("REFOLD_DEMO_MODEL_NAME", "gpt-4o-mini")
    return EndpointModel(url, name, os.environ.get("REFOLD_DEMO_MODEL_KEY"))
