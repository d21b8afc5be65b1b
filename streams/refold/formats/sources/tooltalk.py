"""ToolTalk dialogues: an assistant turn carries its API requests with their responses or exceptions.

Such a turn is three things that happened: calls, results, then what was said. It becomes three messages
with one ``group_id``; the source counts one, which is what :mod:`refold.formats.counts` counts for it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from refold.errors import InvalidRecord
from refold.formats.body import Body, message_body
from refold.formats.calls import CallNames
from refold.formats.extra import Hints, pack, rest_of, take, unpack
from refold.formats.jsonio import dumps_text, loads
from refold.formats.parts import Part, text, tool_call, tool_result
from refold.formats.sources.framed import Framed

FORMAT: Final = "tooltalk"


def _message_in(message: Any, message_id: str, names: CallNames) -> list[Body]:
    rest = dict(message) if isinstance(message, dict) else {}
    role, said = take(rest, "role", str), take(rest, "text", str)
    if role not in ("user", "assistant", "system") or said is None:
        raise InvalidRecord("bad_message", "a ToolTalk turn needs a 'role' and a string 'text'")
    asked: list[Part] = []
    answered: list[Part] = []
    if isinstance(rest.get("apis"), list) and all(_is_api(api) for api in rest["apis"]):
        for at, api in enumerate(rest.pop("apis")):
            call, result = _api_in(api, f"{message_id}-call-{at}")
            asked.append(call)
            answered.append(result)
    last = message_body(message_id, role, [text(said)], extra_format=FORMAT, extra=pack(rest))
    if not asked:
        return [last]
    last["group_id"] = message_id
    return [
        message_body(
            f"{message_id}-calls", role, asked, extra_format=FORMAT, extra=None, group_id=message_id
        ),
        message_body(
            f"{message_id}-results", "tool", answered, extra_format=FORMAT, extra=None, group_id=message_id
        ),
        last,
    ]


def _is_api(api: Any) -> bool:
    return (
        isinstance(api, dict)
        and isinstance(api.get("request"), dict)
        and isinstance(api["request"].get("api_name"), str)
    )


def _api_in(api: dict[str, Any], call_id: str) -> tuple[Part, Part]:
    """The request as a call, response and exception as its result.

    What is left of the entry stays with the call.
    """
    rest = {key: value for key, value in api.items() if key not in ("request", "response", "exception")}
    request = dict(api["request"])
    name = request.pop("api_name")
    hints: Hints = {key: True for key in ("response", "exception") if key in api}
    if "parameters" in request:
        hints["parameters"] = True
    raw = dumps_text(request.pop("parameters", {}))
    call = tool_call(call_id, name, raw, pack({**rest, "request": request} if request else rest, hints))
    failed = api.get("exception") is not None
    told = api.get("exception") if failed else api.get("response")
    kept = {"response": api["response"]} if failed and "response" in api else {}
    return call, tool_result(call_id, [text(dumps_text(told))], name=name, is_error=failed, extra=pack(kept))


def _api_out(call: Part, result: Part) -> dict[str, Any]:
    rest, hints = unpack(call.fields.get("extra"))
    request = {"api_name": call.fields["name"], **rest.pop("request", {})}
    if hints.get("parameters"):
        request["parameters"] = loads(call.fields["arguments"])
    made: dict[str, Any] = {"request": request, **rest}
    told = loads(result.fields["content"][0].text or "null")
    failed = result.fields["is_error"]
    if hints.get("response"):
        made["response"] = rest_of(result).get("response") if failed else told
    if hints.get("exception"):
        made["exception"] = told if failed else None
    return made


def _messages_out(found: Sequence[Mapping[str, Any]]) -> list[Any]:
    made: list[Any] = []
    asked: Sequence[Part] = ()
    answered: Sequence[Part] = ()
    for body in found:
        if body["message_id"].endswith("-calls"):
            asked = body["content"]
        elif body["message_id"].endswith("-results"):
            answered = body["content"]
        else:
            rest, _ = unpack(body["extra"])
            turn = {"role": body["role"], "text": body["content"][0].text, **rest}
            if body["group_id"] is not None:
                turn["apis"] = [_api_out(call, result) for call, result in zip(asked, answered, strict=True)]
            made.append(turn)
    return made


def _looks(value: Any) -> float:
    if not isinstance(value, dict) or not isinstance(value.get("conversation"), list):
        return 0.0
    return 1.0 if "apis_used" in value and "conversation_id" in value else 0.0


TOOLTALK: Final = Framed(
    name="tooltalk",
    expects='one {"conversation_id", "apis_used", "conversation": [{"role", "text", "apis"?}]} per line',
    place="conversation",
    looks=_looks,
    message_in=_message_in,
    messages_out=_messages_out,
    natural_id=lambda value: (
        f"tooltalk-{value['conversation_id']}" if isinstance(value.get("conversation_id"), str) else None
    ),
    title=lambda value: value["name"] if isinstance(value.get("name"), str) else None,
)
