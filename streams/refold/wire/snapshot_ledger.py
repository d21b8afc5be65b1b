"""The rest of a snapshot's public part, which changes rarely: facts, config, tool rows, branches, link."""

from __future__ import annotations

from refold.core.envelope import LINK_KINDS, SessionLink
from refold.core.ledger import touch
from refold.core.session import Call, Config, Fact, Session
from refold.wire.pieces import (
    NULL,
    SOME,
    Cursor,
    array,
    boolean,
    number,
    optional_number,
    optional_text,
    text,
)

_STATES = ("intended", "awaiting_approval", "started", "done", "failed", "denied", "unknown")
_APPROVALS = ("", "required", "requested", "approved", "denied")


def encode_rest(session: Session) -> bytes:
    config = session.config
    return b"".join(
        (
            array([text(name) + text(fact.value) + number(fact.seq) for name, fact in session.facts.items()]),
            NULL if config is None else SOME + text(config.digest) + text(config.json) + number(config.seq),
            array([call.enc or encode_call(call) for call in session.calls.values()]),
            _branches(session),
            _link(session.link),
        )
    )


def encode_call(call: Call) -> bytes:
    enc = b"".join(
        (
            text(call.operation_id),
            optional_text(call.call_id),
            optional_text(call.message_id),
            text(call.tool),
            optional_text(call.arguments),
            number(call.arguments_length),
            optional_text(call.arguments_sha256),
            boolean(call.arguments_valid),
            text(call.effect),
            text(call.state),
            number(call.attempt),
            text(call.approval),
            optional_text(call.holder),
            optional_number(call.lease_until_ms),
            number(call.fencing),
            optional_text(call.result_summary),
            boolean(call.is_error),
            optional_text(call.error_code),
            optional_text(call.error),
            number(call.intended_seq),
            number(call.updated_seq),
            number(call.result_seq),
            number(call.message_seq),
            boolean(call.declared),
            number(call.order),
        )
    )
    call.enc = enc
    return enc


def _branches(session: Session) -> bytes:
    """One entry per leaf of the branch messages, by seq."""
    branches = session.branch_messages
    if not branches:
        return array([])
    parents = {m.parent for m in branches.values()}
    entries = []
    for leaf in branches.values():
        if leaf.id in parents:
            continue
        fork = leaf.parent
        seen = {leaf.id}
        while fork in branches and fork not in seen:
            seen.add(fork)
            fork = branches[fork].parent
        entries.append(text(leaf.id) + optional_text(fork or None) + number(leaf.seq))
    return array(entries)


def _link(link: SessionLink | None) -> bytes:
    if link is None:
        return NULL
    kind = LINK_KINDS.index(link.kind) if link.kind in LINK_KINDS else len(LINK_KINDS) - 1
    return SOME + number(kind) + text(link.session) + optional_number(link.seq) + optional_text(link.call)


def read_rest(session: Session, cursor: Cursor, exact: bool) -> None:
    start = cursor.at
    count = cursor.count()
    for _ in range(count):
        name = cursor.text()
        value = cursor.blob()
        session.facts[name] = Fact(value.decode(), cursor.number(), len(value))
        session.facts_bytes += len(value)
    cursor.end(count)
    if cursor.some():
        session.config = Config(cursor.text(), cursor.text(), cursor.number())
    count = cursor.count()
    for _ in range(count):
        read_call(session, cursor)
    cursor.end(count)
    # The branches follow from the branch messages: nothing to read, only to compare.
    branches_at = cursor.at
    count = cursor.count()
    for _ in range(count):
        cursor.blob()
        cursor.optional_text()
        cursor.number()
    cursor.end(count)
    if exact and cursor.data[branches_at : cursor.at] != _branches(session):
        raise ValueError("branches disagree with the branch messages")
    if cursor.some():
        kind = cursor.length()  # not below zero
        session.link = SessionLink(
            LINK_KINDS[kind], cursor.text(), cursor.optional_number(), cursor.optional_text()
        )
    session.enc_rest = cursor.data[start : cursor.at] if exact else None


def read_call(session: Session, cursor: Cursor) -> None:
    start = cursor.at
    call = Call(cursor.text(), "", 0)
    call.call_id = cursor.optional_text()
    call.message_id = cursor.optional_text()
    call.tool = cursor.text()
    call.arguments = cursor.optional_text()
    call.arguments_length = cursor.number()
    call.arguments_sha256 = cursor.optional_text()
    call.arguments_valid = cursor.boolean()
    call.effect = cursor.text()
    state = cursor.text()
    call.attempt = cursor.number()
    approval = cursor.text()
    call.holder = cursor.optional_text()
    call.lease_until_ms = cursor.optional_number()
    call.fencing = cursor.number()
    call.result_summary = cursor.optional_text()
    call.is_error = cursor.boolean()
    call.error_code = cursor.optional_text()
    call.error = cursor.optional_text()
    call.intended_seq = cursor.number()
    updated_seq = cursor.number()
    call.result_seq = cursor.number()
    call.message_seq = cursor.number()
    call.declared = cursor.boolean()
    call.order = cursor.number()
    call.state = _STATES[_STATES.index(state)]  # type: ignore[assignment]
    call.approval = _APPROVALS[_APPROVALS.index(approval)]  # type: ignore[assignment]
    session.calls[call.operation_id] = call
    if call.state not in ("done", "failed", "denied"):
        session.open_calls += 1
    touch(session, call, updated_seq)
    call.enc = cursor.data[start : cursor.at]
