"""Events of a session beside its messages, and what they carry: settings, links to other sessions."""

from __future__ import annotations

from refold.core.policystate import PolicyChange


class Settings:
    """Window settings and policy of SessionOpened and SessionConfigured; None keeps the present one."""

    __slots__ = ("hold_for_summary", "policy", "window_bytes", "window_messages")

    def __init__(
        self,
        window_messages: int | None = None,
        window_bytes: int | None = None,
        hold_for_summary: bool | None = None,
        policy: PolicyChange | None = None,
    ) -> None:
        self.window_messages = window_messages
        self.window_bytes = window_bytes
        self.hold_for_summary = hold_for_summary
        self.policy = policy


class ChildLinked:
    """``session`` belongs to this one; ``call``: operation id of the call it answers, or a bare call id."""

    __slots__ = ("call", "kind", "session")

    def __init__(self, session: str, kind: str, call: str | None = None) -> None:
        self.session = session
        self.kind = kind
        self.call = call
