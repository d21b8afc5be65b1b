"""State records that no worker need have written: looked at before anything is made of them.

The snapshot's own reader finds a message's end by its ``size``, and tidies what an older version had more of
in time that grows with what there is. So in bytes from anybody each size must be the true one, and there may
not be more of anything than some version has written, nor anything twice: what leaves to make room would
leave once.
"""

from __future__ import annotations

from functools import cache
from typing import Any, Final

from refold.core.limits import ANSWERS_MAX, CLOSED_CALLS_MAX, OLDER_OPEN_CALLS_MAX, WINDOW_MESSAGES_MAX
from refold.errors import InvalidRecord
from refold.wire.codec import encode_body
from refold.wire.schemas import registry

#: Where a snapshot's context has messages.
MESSAGE_LISTS: Final = ("system", "recent_messages", "branch_messages")

#: Of one list of any version: the window's.
_MESSAGES_MAX: Final = WINDOW_MESSAGES_MAX
_ANSWERS_MAX: Final = _MESSAGES_MAX * ANSWERS_MAX
_CALLS_MAX: Final = OLDER_OPEN_CALLS_MAX + CLOSED_CALLS_MAX

_BODY: Final = "refold.event.MessageAppended"


@cache
def _fields() -> tuple[str, ...]:
    return tuple([field["name"] for field in registry().get(_BODY).schema["fields"]])


def check_foreign(record: dict[str, Any]) -> None:
    """Raises InvalidRecord where the decoded record cannot be one of a worker."""
    lists = [record["context"][name] for name in MESSAGE_LISTS]
    if max(map(len, lists)) > _MESSAGES_MAX or len(record["tools"]) > _CALLS_MAX:
        raise InvalidRecord("undecodable", "the state record holds more than any session")
    ids = [message["message_id"] for messages in lists for message in messages]
    if len(set(ids)) < len(ids):
        raise InvalidRecord("undecodable", "a message is in the state record twice")
    for messages in lists:
        if sum([len(message["answers"]) for message in messages]) > _ANSWERS_MAX:
            raise InvalidRecord("undecodable", "the messages in the state record answer too many")
        for message in messages:
            # The end of a message is the fields of its event's payload, byte for byte.
            if message["size"] != len(encode_body(_BODY, {name: message[name] for name in _fields()})):
                raise InvalidRecord("undecodable", "the size of a message in the state record is wrong")
