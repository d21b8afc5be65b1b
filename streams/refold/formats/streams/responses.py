"""OpenAI's Responses events, and those of servers that speak like it.

The items are taken from ``response.output_item.done``. A closing event that has more than its deltas (or had
none: a looked-up response comes in one piece) hands on the rest. Items without their closing event are put
together from what came.

A further ``response.created``: with the same id it is a repeat; while a response is open it means that the
answer began anew (:attr:`restarts`), what was broken off is kept under ``$refold.stream.superseded``; after
the end its items follow those of the first. Of the response itself everything is kept under
``$refold.response`` but the output and what only repeats the request.
"""

from __future__ import annotations

from typing import Any, Final

from refold.core.progress import TokenUsage
from refold.formats import openai_responses
from refold.formats.body import Body
from refold.formats.jsonio import dumps_text
from refold.formats.streams.base import Parser, size_of, word
from refold.formats.streams.chunks import Payload
from refold.formats.streams.delta import OTHER, TOOL_CALL
from refold.formats.streams.items import items_in
from refold.formats.streams.openai import count
from refold.formats.streams.pieces import Piece
from refold.formats.streams.response_items import ELEMENTS, PLACES, WHOLE, Item, Place

#: Keys of a response that repeat what was asked (with all tools and instructions), and its output.
_REPEATED: Final = frozenset(
    {"output", "output_text", "instructions", "tools", "tool_choice", "text", "reasoning", "temperature",
     "top_p", "top_logprobs", "max_output_tokens", "max_tool_calls", "parallel_tool_calls", "truncation",
     "store", "background", "frequency_penalty", "presence_penalty", "prompt", "prompt_cache_key",
     "prompt_cache_retention", "safety_identifier", "user", "metadata", "content_filters"}
)  # fmt: skip
_ENDS: Final = frozenset(
    {"response.completed", "response.incomplete", "response.failed", "response.cancelled"}
)
_STATES: Final = frozenset({"response.in_progress", "response.queued"})


class ResponsesParser(Parser):
    format = "openai-responses"

    def __init__(self) -> None:
        super().__init__()
        self._about: dict[str, Any] = {}
        self._items: list[Item] = []
        self._by_index: dict[int, Item] = {}
        self._by_id: dict[str, Item] = {}
        self._first_item = 0
        self._broken_off: list[dict[str, Any]] = []
        self._open = False

    def _take(self, payload: Payload) -> None:
        kind = payload.get("type")
        kind = kind if isinstance(kind, str) else ""
        response = payload.get("response")
        response = response if isinstance(response, dict) else {}
        if payload.get("object") == "response":  # Whole: a look-up, or an answer without streaming.
            self._created(payload)
            self._end(payload)
        elif kind == "error":
            self._failed(payload["error"] if isinstance(payload.get("error"), dict) else payload)
        elif not kind.startswith("response."):
            self._not_known(kind, payload)
        elif kind == "response.created":
            self._created(response)
        elif kind in _ENDS:
            self._end(response)
        elif kind in _STATES:
            self._head(response)
        else:
            self._take_part(kind.removeprefix("response."), payload)

    # ---- the response ----------------------------------------------------------------------------------

    def _created(self, response: dict[str, Any]) -> None:
        other = self._about.get("id") != response.get("id")
        if self._about and other:
            if self._open:
                self.restarts += 1
                self._broken_off.append({**self._about, "output": self._output()})
                self._announce("restart")
                self._items = []
            self.finish_reason, self._ended = None, False
            self._by_index, self._by_id, self._about = {}, {}, {}
            self._first_item = len(self._items)
            self._usage_before = self.usage or TokenUsage()
        self._open = True
        self._head(response)

    def _head(self, response: dict[str, Any]) -> None:
        self._about.update({key: value for key, value in response.items() if key not in _REPEATED})
        if isinstance(response.get("id"), str) and response["id"]:
            self.provider_response_id = response["id"]
        if isinstance(response.get("model"), str) and response["model"]:
            self.model = response["model"]
        usage = response.get("usage")
        if isinstance(usage, dict):
            self._used(usage_of(usage))

    def _end(self, response: dict[str, Any]) -> None:
        self._open = False
        self._head(response)
        output = response.get("output")
        if len(self._items) == self._first_item:
            for at, value in enumerate(output if isinstance(output, list) else []):
                self._item_done(at, value)
        if response.get("error"):
            self._failed(response["error"])
        status = response.get("status")
        details = response.get("incomplete_details")
        reason = details.get("reason") if isinstance(details, dict) else None
        if status not in ("in_progress", "queued"):
            self._ended = True
            self._finish_marker(reason if status == "incomplete" and reason else status)

    # ---- items -----------------------------------------------------------------------------------------

    def _take_part(self, name: str, payload: Payload) -> None:
        noun, _, verb = name.rpartition(".")
        place = PLACES.get(noun)
        if noun == "output_item" and verb in ("added", "done"):
            take = self._item_added if verb == "added" else self._item_done
            take(payload.get("output_index"), payload.get("item"))
        elif noun in ("content_part", "reasoning_summary_part") and verb in ("added", "done"):
            self._element(payload, "content" if noun == "content_part" else "summary", done=verb == "done")
        elif noun == "output_text.annotation":
            self._annotation(payload)
        elif place is not None and verb == "delta":
            self._say(self._piece_at(self._item(payload), place, _at(payload)), payload.get("delta"))
        elif place is not None and verb == "done":
            self._say_rest(self._piece_at(self._item(payload), place, _at(payload)), payload.get(place.key))
        elif verb == "delta" and isinstance(payload.get("delta"), str) and "_call" in noun:
            item = self._item(payload)  # Another provider's tool, told by its words.
            self._say(self._piece_at(item, Place(noun, "", noun, OTHER), 0), payload["delta"])
        elif noun.partition("_call")[1] or noun == "mcp_list_tools":
            pass  # Progress of a tool the provider runs; the item has the outcome.
        else:
            self._not_known(f"response.{name}", payload)

    def _item(self, payload: Payload) -> Item:
        index, name = payload.get("output_index"), payload.get("item_id")
        found = self._by_index.get(index) if type(index) is int else None
        if found is None and isinstance(name, str):
            found = self._by_id.get(name)
        if found is None:  # Joined in the middle: an item whose beginning did not come.
            noun = str(payload.get("type")).removeprefix("response.").rpartition(".")[0]
            place = PLACES.get(noun)
            kind = next((kind for kind, of in WHOLE.items() if of == place), None)
            head, call, _ = noun.partition("_call")
            kind = kind or (
                head + call if call else "reasoning" if head.startswith("reasoning") else "message"
            )
            value = {"type": kind, **({"role": "assistant"} if kind == "message" else {})}
            found = self._new_item(index, {**value, **({"id": name} if isinstance(name, str) else {})})
        return found

    def _new_item(self, index: Any, value: dict[str, Any]) -> Item:
        item = Item(value)
        self._items.append(item)
        if type(index) is int:
            self._by_index[index] = item
        if isinstance(value.get("id"), str):
            self._by_id[value["id"]] = item
        return item

    def _item_added(self, index: Any, value: Any) -> Item:
        value = value if isinstance(value, dict) else {"type": "unknown", "value": value}
        item = self._new_item(index, value)
        kind = word(value.get("type"))
        if kind in WHOLE:
            self._piece_at(item, WHOLE[kind], 0, tell=True)
        elif kind not in ("message", "reasoning"):
            self._announce(str(kind).removesuffix("_call"), _id(value))
        return item

    def _item_done(self, index: Any, value: Any) -> None:
        item = self._by_index.get(index) if type(index) is int else None
        if item is None and isinstance(value, dict) and isinstance(value.get("id"), str):
            item = self._by_id.get(value["id"])
        if item is None:
            item = self._item_added(index, value)
        if isinstance(value, dict):
            item.value = value
            self._keep(size_of(value))
        item.done = True
        self._say_whole(item)

    def _say_whole(self, item: Item) -> None:
        for place, at, said in item.texts():
            self._say_rest(self._piece_at(item, place, at), said)
        for annotation in item.untold():
            self._announce("citation", text=dumps_text(annotation))

    def _piece_at(self, item: Item, place: Place, at: int, *, tell: bool = False) -> Piece:
        key = (place.holder, at)
        piece = item.pieces.get(key)
        if piece is None:
            named: tuple[str | None, str | None] = (None, None)
            if place.delta in (TOOL_CALL, OTHER):
                kind = str(item.value.get("type")).removesuffix("_call")
                named = (_id(item.value), word(item.value.get("name")) or kind)
            piece = item.pieces[key] = self._piece(place.delta, *named)
            if tell:
                self._say(piece, "")
        return piece

    def _element(self, payload: Payload, holder: str, *, done: bool) -> None:
        item, at = self._item(payload), _at(payload)
        value = payload.get("part")
        if not isinstance(value, dict):
            return
        item.elements[holder, at] = value
        place = ELEMENTS.get(str(value.get("type")))
        if place is not None and place.holder == holder and isinstance(value.get(place.key), str):
            piece = self._piece_at(item, place, at)
            if done:  # What an element has when it begins is repeated by its deltas or by this.
                self._say_rest(piece, value[place.key])

    def _annotation(self, payload: Payload) -> None:
        self._item(payload).annotations.setdefault(_at(payload), []).append(payload.get("annotation"))
        self._announce("citation", text=dumps_text(payload.get("annotation")))

    # ---- the end ---------------------------------------------------------------------------------------

    def _output(self) -> list[dict[str, Any]]:
        return [item.whole() for item in self._items]

    def _body(self, message_id: str, fields: dict[str, Any]) -> Body:
        return items_in(self._output(), message_id=message_id, **fields)

    def _response(self) -> dict[str, Any]:
        return {key: value for key, value in self._about.items() if value is not None}

    def _superseded(self) -> list[Any]:
        return self._broken_off

    def _marked(self, body: Body) -> Body:
        body = super()._marked(body)
        if body["extra"] is not None:
            body["extra_format"] = openai_responses.FORMAT
        return body


def _at(payload: Payload) -> int:
    for key in ("content_index", "summary_index", "command_index"):
        if type(payload.get(key)) is int and 0 <= payload[key] < 1024:
            return int(payload[key])
    return 0


def _id(value: dict[str, Any]) -> str | None:
    return word(value.get("call_id")) or word(value.get("id"))


def usage_of(usage: dict[str, Any]) -> TokenUsage:
    """Typed usage. Cached input and reasoning are parts of input and output, as in refold."""
    return TokenUsage(
        input=count(usage, "input_tokens"),
        output=count(usage, "output_tokens"),
        cached=count(usage.get("input_tokens_details"), "cached_tokens"),
        reasoning=count(usage.get("output_tokens_details"), "reasoning_tokens"),
    )
