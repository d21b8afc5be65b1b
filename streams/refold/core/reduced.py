"""What the journal says about reducers' parts: the events, when they are accepted, what they do.

Both events state a whole part, so that a fold of the journal needs no reducer to agree from there on.
"""

from __future__ import annotations

from typing import TypeAlias

from refold.core import reducers
from refold.core.limits import SEQ_DISTANCE_MAX
from refold.core.policystate import Reduced
from refold.core.reducerevents import ReducerEvent, ReducerQuarantined
from refold.core.reducers import NAME_BYTES_MAX, STATE_BYTES_MAX, STATES_BYTES_MAX, states_bytes
from refold.core.rulings import Rejected
from refold.core.session import Session

Ruled: TypeAlias = Rejected | None


def rule_reducer(session: Session, event: ReducerEvent) -> Ruled:
    """Whether a release is accepted (X5). Raises nothing."""
    if isinstance(event, ReducerQuarantined):
        return Rejected("reserved_type", "only the worker writes ReducerQuarantined")
    if not event.name or len(event.name.encode("utf-8", "replace")) > NAME_BYTES_MAX:
        return Rejected("bad_id", f"a reducer's name has 1 to {NAME_BYTES_MAX} bytes")
    if session.seq == 0:
        return Rejected("no_session", "there is no session yet whose part could be released")
    if event.version < 1:
        return Rejected("bad_value", "a reducer's version is a number from 1 on")
    part = session.reduced.get(event.name)
    registry = reducers.active
    known = None if registry is None else registry.by_name.get(event.name)
    if known is None and part is None:
        return Rejected("bad_value", f"the worker has no reducer {event.name} and the session no such part")
    version = known.version if known is not None else part.version if part is not None else 0
    if event.version != version:
        return Rejected(
            "bad_value", f"the part was folded with version {event.version}, the worker has version {version}"
        )
    # Who folds without the reducer leaves no trace of its events: where there is no part, any may be one.
    newest = session.seq if part is None else part.seq
    if not -SEQ_DISTANCE_MAX < event.at_seq <= session.seq or event.at_seq < newest:
        return Rejected(
            "expected_seq", f"the part was folded to seq {event.at_seq}; its events go on to {newest}"
        )
    return _rule_state(session, part, event.state)


def _rule_state(session: Session, part: Reduced | None, state: bytes) -> Ruled:
    held = states_bytes(session) - (0 if part is None else len(part.state))
    if len(state) > STATE_BYTES_MAX or held + len(state) > STATES_BYTES_MAX:
        return Rejected("too_large", f"a part's state of {len(state)} bytes does not fit")
    if reducers.is_state(state):
        return None
    return Rejected("bad_value", "a part's state is canonical JSON, and not null")


def apply_reducer(session: Session, event: ReducerEvent) -> None:
    part = session.reduced.get(event.name)
    if part is None:
        part = reducers.add_part(session, event.name, event.version)
    part.version = event.version
    part.seq = event.at_seq
    part.state = event.state
    if isinstance(event, ReducerQuarantined):
        part.status, part.error = "quarantined", event.error
    else:
        part.status, part.error = "ok", None
    session.enc_tail = None


def comparable(stored: Session, folded: Session) -> list[str]:
    """Make the parts of a stored session and of its fold comparable byte for byte, and say which are not.

    A part that no event has touched since its reducer's version was raised is upcast as its next event would.
    Not compared, and taken out of both: parts whose reducer this process does not have or has in an older
    version, and those of reducers that came after the session and have met no event of it yet.
    """
    registry = reducers.active
    left_out: list[str] = []
    for name in sorted(stored.reduced.keys() | folded.reduced.keys()):
        reducer = None if registry is None else registry.by_name.get(name)
        part = stored.reduced.get(name)
        if reducer is None or part is None or part.version > reducer.version:
            left_out.append(name)
            stored.reduced.pop(name, None)
            folded.reduced.pop(name, None)
            continue
        for one in (part, folded.reduced.get(name)):
            if one is not None and one.status == "ok" and one.version < reducer.version:
                try:
                    one.state = reducers.encode_state(reducers.current(reducer, one))
                    one.version = reducer.version
                except reducers.Unfit as unfit:
                    one.status, one.error = "quarantined", unfit.error
    stored.enc_tail = folded.enc_tail = None
    return left_out
