"""The session's life: opened, configured, closed, reopened, deleted; quarantined and released.

::

    open <----> closed          SessionClosed / SessionReopened
     |  \\       /
     |   quarantined ---> releasing ---> open or closed, as before
     |        ^_______________|          the fold raised again
     `--> (deleted: the state before the first event)

Q1  While quarantined every event is parked: rejected with ``quarantined``, to be replayed in order. Only
    the release, a deletion, and a new quarantine get through.
Q2  While releasing, events marked ``origin.replay`` are folded and all others still parked, so nothing
    overtakes what was parked before it.
Q3  A release ends only when it has replayed as many events as were parked (``parked``).
Q4  A closed session takes what settles things that were open (outcomes of calls, results, denials, looking
    after started calls, the end of generations under way, a summary, kept records, what was used,
    releases of reducers' parts) and nothing that goes on with it.
"""

from __future__ import annotations

from hashlib import sha256

from refold.core.envelope import Envelope
from refold.core.events import (
    ContextSummarized,
    Event,
    GenerationFailed,
    GenerationFinished,
    GenerationLeaseRenewed,
    GenerationStopped,
    MessageAppended,
    Opaque,
    SessionClosed,
    SessionConfigured,
    SessionDeleted,
    SessionEventParked,
    SessionOpened,
    SessionQuarantined,
    SessionReleased,
    SessionReleaseFinished,
    SessionReopened,
    ToolCallCompleted,
    ToolCallDenied,
    ToolCallFailed,
    ToolCallOutcomeUnknown,
    ToolCallReconciled,
)
from refold.core.jsontext import is_valid_json
from refold.core.limits import (
    CONFIG_BYTES_MAX,
    WINDOW_BYTES_MAX,
    WINDOW_BYTES_MIN,
    WINDOW_MESSAGES_MAX,
    WINDOW_MESSAGES_MIN,
)
from refold.core.operationevents import SessionPruned
from refold.core.policy import apply_policy, changed_policy, rule_policy
from refold.core.reducerevents import ReducerReleased
from refold.core.rulings import Duplicate, Parked, Rejected
from refold.core.run_events import (
    RunCompleted,
    RunFailed,
    RunLeased,
    RunReleased,
    RunResolved,
    RunStopped,
    RunSuspended,
    StepCompleted,
    StepFailed,
    StepHeartbeat,
)
from refold.core.session import Config, Session, Status
from refold.core.usage import UsageRecorded, UsageReleased

#: What a closed session still takes (Q4). MessageAppended decides for itself: results only. So do RunLeased
#: (renewals only) and RunResolved (N9).
SETTLING = frozenset(
    {
        ContextSummarized,
        GenerationFailed,
        GenerationFinished,
        GenerationLeaseRenewed,
        GenerationStopped,
        MessageAppended,
        Opaque,
        RunCompleted,
        RunFailed,
        RunLeased,
        RunReleased,
        RunResolved,
        RunStopped,
        RunSuspended,
        SessionClosed,
        SessionDeleted,
        SessionPruned,
        SessionQuarantined,
        SessionReleaseFinished,
        SessionReleased,
        SessionReopened,
        StepCompleted,
        StepFailed,
        StepHeartbeat,
        ToolCallCompleted,
        ToolCallDenied,
        ToolCallFailed,
        ToolCallOutcomeUnknown,
        ToolCallReconciled,
        UsageRecorded,
        UsageReleased,
        ReducerReleased,
    }
)

_PASS_QUARANTINE = frozenset({SessionDeleted, SessionQuarantined, SessionReleased})


def rule_status(session: Session, env: Envelope, event: Event) -> Rejected | None:
    """Q1, Q2 and Q4, for a session that is not simply open."""
    status = session.status
    kind = type(event)
    if status == "closed":
        if kind in SETTLING:
            return None
        return Rejected("session_closed", f"the session is closed since seq {session.status_seq}")
    if kind in _PASS_QUARANTINE:
        return None
    if status == "releasing":
        if kind is SessionReleaseFinished or (env.origin is not None and env.origin.replay):
            if session.resume_status == "closed" and kind not in SETTLING:
                return Rejected("session_closed", "the session was closed before its quarantine")
            return None
    elif kind is SessionReleaseFinished:
        return Rejected("not_quarantined", "the release was not begun: append SessionReleased first")
    return Parked(
        "quarantined", f"the session is {status} since seq {session.status_seq}; the event is parked"
    )


def is_closed(session: Session) -> bool:
    """Closed, or being released into being closed."""
    return session.status == "closed" or (session.status == "releasing" and session.resume_status == "closed")


# --- opening and configuration -------------------------------------------------------------------------


def rule_opened(session: Session, event: SessionOpened) -> Duplicate | Rejected | None:
    wrong = rule_configured(session, event)
    if wrong is not None or not session.opened_seq:
        return wrong
    # Opening again is how a second process finds out; other content must say SessionConfigured.
    settings = event.settings
    same = (
        (event.config is None or (session.config is not None and session.config.json == event.config))
        and settings.window_messages in (None, session.window_messages)
        and settings.window_bytes in (None, session.window_bytes)
        and settings.hold_for_summary in (None, session.hold_for_summary)
        and (settings.policy is None or changed_policy(session.policy, settings.policy) == session.policy)
    )
    if same:
        return Duplicate(session.opened_seq)
    return Rejected(
        "conflict",
        f"opened at seq {session.opened_seq} with another configuration: configure it (SessionConfigured)",
    )


def rule_configured(session: Session, event: SessionOpened) -> Rejected | None:
    config = event.config
    if config is not None:
        data = config.encode()
        if len(data) > CONFIG_BYTES_MAX:
            return Rejected("too_large", f"the configuration is longer than {CONFIG_BYTES_MAX} bytes")
        if not is_valid_json(config):
            return Rejected("bad_json", "the configuration is not valid JSON")
        if event.digest is not None and event.digest != sha256(data).hexdigest():
            return Rejected("bad_value", "the digest is not the SHA-256 of the configuration's bytes")
    settings = event.settings
    count, size = settings.window_messages, settings.window_bytes
    if count is not None and not WINDOW_MESSAGES_MIN <= count <= WINDOW_MESSAGES_MAX:
        return Rejected(
            "bad_value", f"window_messages must be {WINDOW_MESSAGES_MIN} to {WINDOW_MESSAGES_MAX}"
        )
    if size is not None and not WINDOW_BYTES_MIN <= size <= WINDOW_BYTES_MAX:
        return Rejected("bad_value", f"window_bytes must be {WINDOW_BYTES_MIN} to {WINDOW_BYTES_MAX}")
    return None if settings.policy is None else rule_policy(settings.policy)


def apply_configured(session: Session, seq: int, event: SessionOpened) -> None:
    if event.config is not None:
        digest = sha256(event.config.encode()).hexdigest()
        session.config = Config(digest, event.config, seq)
        session.enc_rest = None
    settings = event.settings
    if settings.window_messages is not None:
        session.window_messages = settings.window_messages
    if settings.window_bytes is not None:
        session.window_bytes = settings.window_bytes
    if settings.hold_for_summary is not None:
        session.hold_for_summary = settings.hold_for_summary
    if settings.policy is not None:
        apply_policy(session, settings.policy)
    session.enc_settings = None
    if type(event) is not SessionConfigured:
        session.opened_seq = seq
    session.enc_memory = None


# --- status --------------------------------------------------------------------------------------------


def rule_life(session: Session, event: Event) -> Duplicate | Rejected | None:
    """Closing, reopening, deleting, and the quarantine's own events."""
    status = session.resume_status if session.status == "releasing" else session.status
    kind = type(event)
    if kind is SessionClosed and status == "closed":
        return Duplicate(session.status_seq)
    if kind is SessionReopened and status == "open":
        if not session.exists:
            return Rejected("no_session", "there is no session to reopen")
        return Duplicate(session.status_seq)
    if kind is SessionDeleted and not session.exists:
        return Duplicate(0)
    if kind is SessionQuarantined and session.status == "quarantined":
        return Duplicate(session.status_seq)
    if kind is SessionReleased:
        if session.status == "releasing":
            return Duplicate(session.status_seq)
        if session.status != "quarantined":
            return Rejected("not_quarantined", "the session is folding normally")
    if isinstance(event, SessionReleaseFinished):
        if session.status != "releasing":
            return Rejected("not_quarantined", "the session is not being released")
        if event.parked is not None and event.parked != session.parked:
            return Rejected(
                "release_behind", f"{session.parked} events were parked, {event.parked} were replayed"
            )
    return None


def apply_life(session: Session, seq: int, event: Event) -> None:
    kind = type(event)
    if kind is SessionClosed:
        _set(session, seq, "closed")
    elif kind is SessionReopened:
        _set(session, seq, "open")
    elif kind is SessionDeleted:
        session.clear()
    elif kind is SessionQuarantined:
        if session.status in ("open", "closed"):
            session.resume_status = session.status
            session.parked = 0
        session.status = "quarantined"
        session.status_seq = seq
    elif kind is SessionEventParked:
        session.parked += 1
    elif kind is SessionReleased:
        session.status = "releasing"
        session.status_seq = seq
    elif kind is SessionReleaseFinished:
        session.status = session.resume_status
        session.status_seq = seq
        session.parked = 0
    session.enc_memory = None


def _set(session: Session, seq: int, status: Status) -> None:
    """Open or closed; during a release this is what the session will be after it."""
    if session.status == "releasing":
        session.resume_status = status
    else:
        session.status = status
        session.status_seq = seq
