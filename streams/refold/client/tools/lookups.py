"""Asking the external system whether a key took effect: bounded, and never more certain than its answer."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Final

from refold.client.tools.declare import LookupFunction, ask_lookup
from refold.client.tools.outcomes import UNKNOWN, LookupAnswer

#: One question. A lookup that takes longer is a system that does not answer.
LOOKUP_TIMEOUT_S: Final = 10.0
#: Questions that end by an exception or in silence are asked again; an answer, also UNKNOWN, stands.
LOOKUP_TRIES: Final = 3
#: Before the second and third question: 0.5 and 1 s.
LOOKUP_PAUSE_S: Final = 0.5


@dataclass(frozen=True, slots=True)
class Asked:
    """``why``: for the review queue, when the answer is UNKNOWN."""

    answer: LookupAnswer
    why: str = ""


async def ask(lookup: LookupFunction | None, key: str) -> Asked:
    """Never raises but for cancellation: a lookup that fails is one that does not know."""
    if lookup is None:
        return Asked(UNKNOWN, "the tool has no lookup, so nobody can be asked")
    why = ""
    for attempt in range(LOOKUP_TRIES):
        if attempt:
            await asyncio.sleep(LOOKUP_PAUSE_S * 2 ** (attempt - 1))
        try:
            async with asyncio.timeout(LOOKUP_TIMEOUT_S):
                answer = await ask_lookup(lookup, key)
        except Exception as error:
            name = "no answer in time" if isinstance(error, TimeoutError) else type(error).__name__
            why = f"the lookup failed {attempt + 1} times: {name}"
        else:
            return Asked(answer, "the lookup cannot tell" if answer is UNKNOWN else "")
    return Asked(UNKNOWN, why)
