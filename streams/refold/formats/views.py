"""``context(view=agent)``: what one agent of several sees of a session (rule Y3).

Y3  What the agent said is the assistant's, with its calls and their results. What other agents said is the
    user's, after a marker with the name of who said it; their calls, results and thinking are their own and
    not shown. What people said, system messages and the summary are everybody's. What nobody's name stands
    on is the agent's own: in a session with one assistant, whoever joins it later sees it as before.

    Results go to their calls before anything is left out (T1, T2), so no call is shown without its result, no
    result without its call, and no other agent's result as this one's.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from refold.formats import markers
from refold.formats.parts import text
from refold.formats.transcript import Step, Transcript

#: Of another agent's message: not said to anybody.
_PRIVATE: Final = frozenset({"reasoning", "citation", "provider_tool_call", "provider_tool_result"})


def seen_by(source: Transcript, agent: str) -> Transcript:
    """The transcript as ``agent`` sees it; ``source`` is left as it is."""
    steps = [_seen(step, agent) for step in source.steps]
    return Transcript(source.system, source.summary, [step for step in steps if step is not None])


def _seen(step: Step, agent: str) -> Step | None:
    if step.role != "assistant" or step.author is None or step.author == agent:
        return step
    said = [part for part in step.parts if part.type not in _PRIVATE]
    if not said:
        return None
    return Step("user", [text(markers.said_by(step.author)), *said], [], step.author)


def actors(snapshot: Mapping[str, Any]) -> list[str]:
    """The names that stand on the messages held on the active path, in the order they first spoke: actors'
    ids, else the messages' names."""
    context = snapshot["context"]
    found: dict[str, None] = {}
    for message in [*context.get("system", ()), *context["recent_messages"]]:
        name = author_of(message)
        if name is not None:
            found[name] = None
    return list(found)


def author_of(message: Mapping[str, Any]) -> str | None:
    """Who said a held message: the id of its event's actor, else its name."""
    author = message.get("actor") or message.get("name")
    return None if author is None else str(author)
