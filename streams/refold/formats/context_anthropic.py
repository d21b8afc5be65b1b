"""A transcript as an Anthropic request's ``system`` and ``messages``.

Rules of the API that shape this module: user first, then strictly alternating; calls last in the
assistant's turn and all of their results first in the next one; ids unique in the request; no empty or
blank text; thinking only signed, first in its turn and never last; no unknown keys; at most four cache
marks (none is kept). Thinking blocks and web searches of Anthropic's own are given back unchanged,
everything else that has no block is a marked text.
"""

from __future__ import annotations

from typing import Any, Final

from refold.formats import markers
from refold.formats.anthropic_blocks import blocks_out
from refold.formats.ids import ANTHROPIC_ID, CallIds, tool_name
from refold.formats.jsonio import parse_object
from refold.formats.parts import Part, encode_base64
from refold.formats.transcript import Call, Step, Transcript, said_of

Block = dict[str, Any]

#: Bodies made by these formats hold Anthropic's own signatures and encrypted content.
OWN_FORMATS: Final = frozenset({"anthropic", "claude-code"})
IMAGE_TYPES: Final = frozenset({"image/jpeg", "image/png", "image/gif", "image/webp"})
_SILENT: Final = frozenset({"citation"})
_THINKING: Final = ("thinking", "redacted_thinking")
#: Key under which arguments that are no JSON object are shown: ``input`` must be an object.
INVALID_ARGUMENTS: Final = "_invalid_arguments"


def request(source: Transcript) -> dict[str, Any]:
    """``{"system"?: [text blocks], "messages": […]}``. Messages are empty only for a session without any."""
    system = [block for step in source.system for block in _text_blocks(step.parts)]
    if source.summary is not None:
        system.append({"type": "text", "text": markers.summary(source.summary)})
    messages = _messages(source.steps)
    return {"system": system, "messages": messages} if system else {"messages": messages}


def _messages(steps: list[Step]) -> list[Block]:
    ids = CallIds(ANTHROPIC_ID)
    turns: list[Block] = []
    for step in steps:
        if step.role == "assistant":
            asked = [(ids.claim(call.call_id, call.message_id), call) for call in step.calls]
            _say(turns, "assistant", [*_said(step), *(_use(call_id, call) for call_id, call in asked)])
            _say(turns, "user", [_result(call_id, call) for call_id, call in asked])
        elif step.role in ("system", "developer"):
            words = "\n".join(block["text"] for block in _text_blocks(step.parts))
            _say(turns, "user", [{"type": "text", "text": markers.system_note(words)}] if words else [])
        else:
            _say(turns, "user", [block for part in step.parts for block in _user_block(part)])
    return _finish(turns)


def _say(turns: list[Block], role: str, blocks: list[Block]) -> None:
    """Add blocks, to the last turn when it is of the same role."""
    if not blocks:
        return
    if turns and turns[-1]["role"] == role:
        turns[-1]["content"] += blocks
    else:
        turns.append({"role": role, "content": list(blocks)})


def _finish(turns: list[Block]) -> list[Block]:
    """What only the whole shows: thinking's place in its turn, who begins, how the last turn ends."""
    made: list[Block] = []
    for turn in turns:
        if turn["role"] == "assistant":
            turn["content"] = _thinking_in_place(turn["content"])
        _say(made, turn["role"], turn["content"])  # A turn may have become empty: its neighbours join.
    if made and made[0]["role"] == "assistant":
        made.insert(0, {"role": "user", "content": [{"type": "text", "text": markers.STARTS_WITH_ASSISTANT}]})
    if made and made[-1]["role"] == "assistant" and made[-1]["content"][-1]["type"] == "text":
        made[-1]["content"][-1]["text"] = made[-1]["content"][-1]["text"].rstrip()
    return made


def _thinking_in_place(blocks: list[Block]) -> list[Block]:
    """Thinking stays only in a turn that begins with it, and not at the turn's end."""
    if blocks and blocks[0]["type"] not in _THINKING:
        return [block for block in blocks if block["type"] not in _THINKING]
    end = len(blocks)
    while end and blocks[end - 1]["type"] in _THINKING:
        end -= 1
    return blocks[:end]


# ---- blocks --------------------------------------------------------------------------------------------


def _text_blocks(parts: list[Part]) -> list[Block]:
    return [block for part in parts if part.type not in _SILENT for block in _text_block(said_of(part))]


def _text_block(said: str) -> list[Block]:
    """A text block, unless it is blank: the API refuses those."""
    return [{"type": "text", "text": said}] if said.strip() else []


def _said(step: Step) -> list[Block]:
    own = bool(step.formats) and step.formats <= OWN_FORMATS
    searches = _own_searches(step.parts) if own else set()
    blocks: list[Block] = []
    for part in step.parts:
        if part.type in _SILENT:
            continue
        if part.type == "reasoning":
            blocks += _thinking(part) if own else []
        elif (
            part.type in ("provider_tool_call", "provider_tool_result")
            and part.fields.get("call_id") in searches
        ):
            blocks += _bare(blocks_out([part])[0])
        else:
            blocks += _text_block(said_of(part))
    return blocks


def _thinking(part: Part) -> list[Block]:
    """Signed thinking, as it was.

    Without a signature the API refuses it, and so it does when it was altered.
    """
    if part.ref is not None:
        return []
    if part.fields.get("redacted"):
        return (
            [{"type": "redacted_thinking", "data": part.fields["encrypted"]}]
            if part.fields.get("encrypted")
            else []
        )
    signature = part.fields.get("signature")
    return [{"type": "thinking", "thinking": part.text or "", "signature": signature}] if signature else []


def _own_searches(parts: list[Part]) -> set[str]:
    """Web searches with their result right there, whose ids are the API's own."""
    asked = [
        p.fields.get("call_id")
        for p in parts
        if p.type == "provider_tool_call" and p.fields.get("name") == "web_search"
    ]
    told = [
        p.fields.get("call_id")
        for p in parts
        if p.type == "provider_tool_result"
        and p.fields.get("name") == "web_search_tool_result"
        and p.fields.get("json")
    ]
    return {
        call_id
        for call_id in asked
        if isinstance(call_id, str)
        and call_id.startswith("srvtoolu_")
        and asked.count(call_id) == told.count(call_id) == 1
    }


_KEYS: Final = {
    "server_tool_use": ("type", "id", "name", "input"),
    "web_search_tool_result": ("type", "tool_use_id", "content"),
}


def _bare(block: Block) -> list[Block]:
    """The block with the keys a request may have."""
    keys = _KEYS.get(block.get("type", ""))
    return [{key: block[key] for key in keys if key in block}] if keys else []


def _use(call_id: str, call: Call) -> Block:
    asked = parse_object(call.arguments)
    value = {INVALID_ARGUMENTS: call.arguments} if asked is None else asked
    return {"type": "tool_use", "id": call_id, "name": tool_name(call.name), "input": value}


def _result(call_id: str, call: Call) -> Block:
    blocks = [block for part in call.content if part.type not in _SILENT for block in _result_block(part)]
    made: Block = {"type": "tool_result", "tool_use_id": call_id}
    if len(blocks) == 1 and blocks[0]["type"] == "text":
        made["content"] = blocks[0]["text"]
    elif blocks:
        made["content"] = blocks
    if call.is_error:
        made["is_error"] = True
    return made


def _result_block(part: Part) -> list[Block]:
    return _image(part) or _text_block(said_of(part))


def _user_block(part: Part) -> list[Block]:
    if part.type in _SILENT or part.type == "reasoning":
        return []
    return _image(part) or _document(part) or _text_block(said_of(part))


def _image(part: Part) -> list[Block]:
    if part.type != "image" or part.ref is not None:
        return []
    data, url = part.fields.get("data"), part.fields.get("url")
    if data and part.fields.get("media_type") in IMAGE_TYPES:
        source = {"type": "base64", "media_type": part.fields["media_type"], "data": encode_base64(data)}
    elif isinstance(url, str) and url.startswith(("https://", "http://")):
        source = {"type": "url", "url": url}
    else:
        return []
    return [{"type": "image", "source": source}]


def _document(part: Part) -> list[Block]:
    """A PDF by bytes or address.

    Ids of uploaded files belong to one account and one provider and are not shown.
    """
    if part.type != "file" or part.ref is not None:
        return []
    data, url = part.fields.get("data"), part.fields.get("url")
    if data and part.fields.get("media_type") == "application/pdf":
        source = {"type": "base64", "media_type": "application/pdf", "data": encode_base64(data)}
    elif isinstance(url, str) and url.startswith(("https://", "http://")):
        source = {"type": "url", "url": url}
    else:
        return []
    title = part.fields.get("title")
    return [{"type": "document", "source": source, **({"title": title} if title else {})}]
