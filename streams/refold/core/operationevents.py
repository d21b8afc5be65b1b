"""Events of session operations: a fork begins, a path is made active from history, the state is pruned."""

from __future__ import annotations

from refold.core.session import Session


class SessionForked:
    """``base``: the source as of ``source_seq``, without what a fork does not begin with."""

    __slots__ = ("base", "source", "source_seq")

    def __init__(self, source: str, source_seq: int, base: Session) -> None:
        self.source = source
        self.source_seq = source_seq
        self.base = base


class RestoredMessage:
    """``body`` None: the content stays in the journal, ``length`` and ``sha256`` stand for it."""

    __slots__ = (
        "actor",
        "answers",
        "body",
        "from_tool_event",
        "id",
        "length",
        "parent",
        "role",
        "seq",
        "sha256",
        "time_ms",
        "turn_start",
    )

    def __init__(
        self,
        id: str,  # noqa: A002 - the glossary's word
        parent: str,
        seq: int,
        time_ms: int,
        role: str,
        *,
        actor: str | None = None,
        turn_start: bool = False,
        from_tool_event: bool = False,
        answers: tuple[int, ...] = (),
        body: bytes | None = None,
        length: int = 0,
        sha256: str = "",
    ) -> None:
        self.id = id
        self.parent = parent
        self.seq = seq
        self.time_ms = time_ms
        self.role = role
        self.actor = actor
        self.turn_start = turn_start
        self.from_tool_event = from_tool_event
        self.answers = answers
        self.body = body
        self.length = length
        self.sha256 = sha256


class ContextRestored:
    """``messages``: the end of the path, in path order, behind ``through_message_id`` ("" = the root)."""

    __slots__ = ("head_message_id", "messages", "through", "through_message_id", "uncovered")

    def __init__(
        self,
        head_message_id: str,
        through_message_id: str,
        through: int,
        uncovered: int,
        messages: tuple[RestoredMessage, ...],
    ) -> None:
        self.head_message_id = head_message_id
        self.through_message_id = through_message_id
        self.through = through
        self.uncovered = uncovered
        self.messages = messages


class SessionPruned:
    """``branches``: ids of last messages of paths that are not active; ``facts``: names."""

    __slots__ = ("all_branches", "branches", "ended", "facts")

    def __init__(
        self, branches: tuple[str, ...], all_branches: bool, ended: bool, facts: tuple[str, ...]
    ) -> None:
        self.branches = branches
        self.all_branches = all_branches
        self.ended = ended
        self.facts = facts


OperationEvent = SessionForked | ContextRestored | SessionPruned
