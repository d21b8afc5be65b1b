"""A message in the session's state."""

from __future__ import annotations


class Message:
    """A held message. ``parent`` is resolved ("" = root); ``size`` counts what is kept of the body.

    ``body`` is None when the content was elided: then ``sha256`` and ``length`` stand for it. Its bytes are
    held once: in ``kept`` until they are encoded, then at the end of ``enc``, the message's own encoding. Who
    changes what is encoded calls :meth:`altered` first.
    """

    __slots__ = (
        "actor",
        "answers",
        "enc",
        "from_tool_event",
        "id",
        "kept",
        "length",
        "parent",
        "role",
        "seq",
        "sha256",
        "size",
        "time_ms",
        "turn_start",
    )

    def __init__(
        self,
        id: str,  # noqa: A002 - the glossary's word
        seq: int,
        time_ms: int,
        role: str,
        parent: str,
        body: bytes | None,
        size: int,
        turn_start: bool,
        actor: str | None,
    ) -> None:
        self.id = id
        self.seq = seq
        self.time_ms = time_ms
        self.role = role
        self.parent = parent
        self.kept = body
        self.size = size
        self.turn_start = turn_start
        self.actor = actor
        self.from_tool_event = False
        self.answers: tuple[int, ...] = ()
        self.length = 0
        self.sha256 = ""
        self.enc: bytes | None = None

    @property
    def body(self) -> bytes | None:
        """MessageAppended's bytes without their frame."""
        kept, enc = self.kept, self.enc
        if kept is not None or enc is None or self.sha256:
            return kept
        return enc[len(enc) - self.size :]

    def altered(self) -> None:
        """Something else than the body is about to change: the encoding is made again when it is needed."""
        if self.enc is not None:
            self.kept = self.body
            self.enc = None
