"""Call ids as providers take them: of their alphabet and length, each once in a transcript.

A recorded id is kept where it is allowed and free. Otherwise one is made from the message and the recorded
id, so that the same call has the same id in every context of the session as long as it is the one that must
be renamed.
"""

from __future__ import annotations

import hashlib
import re
from typing import Final

#: OpenAI refuses longer ids ("string too long … maximum length 40").
OPENAI_ID_MAX: Final = 40
OPENAI_ID: Final = re.compile(rf"\S{{1,{OPENAI_ID_MAX}}}")
ANTHROPIC_ID: Final = re.compile(r"[a-zA-Z0-9_-]{1,256}")
#: Tool names, of both providers' older and stricter rule.
TOOL_NAME: Final = re.compile(r"[a-zA-Z0-9_-]{1,64}")
TOOL_NAME_MAX: Final = 64
_NOT_IN_NAMES: Final = re.compile(r"[^a-zA-Z0-9_-]")


class CallIds:
    """Hands out ids that match ``allowed`` and were not handed out before."""

    def __init__(self, allowed: re.Pattern[str]) -> None:
        self._allowed = allowed
        self._used: set[str] = set()

    def claim(self, recorded: str, message_id: str) -> str:
        candidate, attempt = recorded, 0
        while candidate in self._used or not self._allowed.fullmatch(candidate):
            mark = hashlib.sha256(f"{message_id}\0{recorded}\0{attempt}".encode()).hexdigest()
            candidate, attempt = f"call_{mark[:24]}", attempt + 1
        self._used.add(candidate)
        return candidate


def tool_name(recorded: str) -> str:
    """The tool's name with foreign characters replaced; a call without a name gets one that says so."""
    name = _NOT_IN_NAMES.sub("_", recorded)[:TOOL_NAME_MAX]
    return name or "unnamed_tool"
