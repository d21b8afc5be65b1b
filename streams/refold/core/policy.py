"""The session's policy: what it does when it is busy, idle or long, as its settings say.

A policy that says nothing but the defaults is none: the session stays a plain one, for the fold's fast lane
as well.
"""

from __future__ import annotations

from typing import Final, cast

from refold.core.limits import LEASE_MS_MAX, WINDOW_BYTES_MAX, WINDOW_BYTES_MIN, WINDOW_MESSAGES_MAX
from refold.core.policystate import ON_BUSY, TTL_ACTIONS, OnBusy, PolicyChange, SessionPolicy, TtlAction
from refold.core.rulings import Rejected
from refold.core.session import Session

_DEFAULT: Final = SessionPolicy()


def rule_policy(change: PolicyChange) -> Rejected | None:
    """Whether each value is one of its kind."""
    if change.on_busy is not None and change.on_busy not in ON_BUSY:
        return Rejected("bad_value", f"on_busy must be one of {', '.join(ON_BUSY)}")
    if change.ttl_action is not None and change.ttl_action not in TTL_ACTIONS:
        return Rejected("bad_value", f"ttl_action must be one of {', '.join(TTL_ACTIONS)}")
    if change.ttl_ms is not None and not 0 <= change.ttl_ms <= LEASE_MS_MAX:
        return Rejected("bad_value", f"ttl_ms must be 0 (never) to {LEASE_MS_MAX}")
    count, size = change.summary_messages, change.summary_bytes
    if count is not None and not 0 <= count < WINDOW_MESSAGES_MAX:
        # At WINDOW_MESSAGES_MAX the window gives messages up: asked for then, a summary would be late.
        return Rejected("bad_value", f"summary_messages must be 0 (never) to {WINDOW_MESSAGES_MAX - 1}")
    if size and not WINDOW_BYTES_MIN <= size < WINDOW_BYTES_MAX:
        return Rejected(
            "bad_value", f"summary_bytes must be 0 (never) or {WINDOW_BYTES_MIN} to {WINDOW_BYTES_MAX - 1}"
        )
    return None


def changed_policy(policy: SessionPolicy | None, change: PolicyChange) -> SessionPolicy | None:
    """The policy after a change that was accepted; None: nothing but the defaults."""
    held = policy or _DEFAULT
    made = SessionPolicy(
        held.on_busy if change.on_busy is None else cast("OnBusy", change.on_busy),
        held.ttl_ms if change.ttl_ms is None else change.ttl_ms,
        held.ttl_action if change.ttl_action is None else cast("TtlAction", change.ttl_action),
        held.summary_messages if change.summary_messages is None else change.summary_messages,
        held.summary_bytes if change.summary_bytes is None else change.summary_bytes,
    )
    return None if made == _DEFAULT else made


def apply_policy(session: Session, change: PolicyChange) -> None:
    """The deadline follows in ``settle``, as after every event of a session with a policy or a deadline."""
    session.policy = changed_policy(session.policy, change)
    session.enc_tail = None
