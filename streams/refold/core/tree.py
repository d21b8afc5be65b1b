"""The message tree: where a message goes, and which path is active. Labelled B in docs/concepts/session.md.

B1  Parent null continues the active head, "" begins a new root, an id hangs the message there: a sibling of
    what already hangs there is a regeneration or an edit, and the path through the new message is active.
B2  What leaves the active path is kept as ``branch_messages``, bounded; switching back finds it.
B3  A parent that is not held makes a path whose beginning is unknown: ``complete`` is False until a summary
    covers it. A summary stands only on the path it was made on: a path left and found again through the same
    trimmed beginning gets it back, any other path does not.
B4  Pinned system messages stand outside the tree: one named as a parent means the message before it.
"""

from __future__ import annotations

from refold.core.context import forget_messages
from refold.core.limits import ALIASES_MAX, BRANCH_BYTES_MAX, BRANCH_MESSAGES_MAX, TRUNKS_MAX
from refold.core.messagestate import Message
from refold.core.session import Session, Trunk


def resolve(session: Session, parent: str) -> str:
    """The place an id stands for. Follows aliases; they never form a ring, and the bound is the proof."""
    for _ in range(ALIASES_MAX):
        known = session.aliases.get(parent)
        if known is None:
            break
        parent = known
    return parent


def add_alias(session: Session, message_id: str, place: str) -> None:
    """``message_id`` is not placed itself; children of it follow ``place``."""
    if message_id == place:
        return
    aliases = session.aliases
    aliases[message_id] = place
    if len(aliases) > ALIASES_MAX:
        del aliases[next(iter(aliases))]
    session.enc_memory = None


def path_to(session: Session, message_id: str) -> list[Message]:
    """The held messages from the farthest held ancestor of ``message_id`` to itself; empty when not held."""
    path: list[Message] = []
    seen: set[str] = set()
    node = tree_message(session, message_id)
    # A producer may name a parent that only comes later and then hangs it below its own child.
    while node is not None and node.id not in seen:
        seen.add(node.id)
        path.append(node)
        node = tree_message(session, node.parent)
    path.reverse()
    return path


def tree_message(session: Session, message_id: str) -> Message | None:
    """A held message that is part of the tree: not pinned, not waiting."""
    found = session.branch_messages.get(message_id)
    if found is not None:
        return found
    found = session.held.get(message_id)
    return found if found is not None and found in session.recent else None


def activate(session: Session, head: str) -> None:
    """Make the path that ends at ``head`` the active one. ``head`` may be "", held, or unknown (B3)."""
    path = path_to(session, head)
    bottom = path[0].parent if path else head
    keep = {m.id for m in path}
    leaving = [m for m in session.recent if m.id not in keep]
    for message in path:
        if session.branch_messages.pop(message.id, None) is not None:
            session.branch_bytes -= message.size
    cut = first_whole(path)
    if cut:
        bottom = path[cut - 1].id
    if bottom != session.trunk_id:
        _leave_trunk(session)
        _enter_trunk(session, bottom)
    if cut:
        session.through = path[cut - 1].seq
        forget_messages(session, path[:cut])
        path = path[cut:]
    session.recent = path
    session.recent_bytes = sum(m.size for m in path)
    session.head = head
    for message in leaving:
        session.branch_messages[message.id] = message
        session.branch_bytes += message.size
    if leaving:
        # In the order of their seq: the encoded order must not depend on how the path was left.
        session.branch_messages = dict(sorted(session.branch_messages.items(), key=lambda item: item[1].seq))
    bound_branches(session)
    prune_trunks(session)
    session.enc_branches = session.enc_rest = session.enc_context = session.enc_memory = None


def first_whole(path: list[Message]) -> int:
    """Where a path can begin without a result whose call is not on it (W2): the call may be trimmed."""
    cut = 0
    while True:
        seqs = {m.seq for m in path[cut:]}
        alone = [at for at, m in enumerate(path) if at >= cut and m.answers and seqs.isdisjoint(m.answers)]
        if not alone:
            return cut
        # What is cut off may have asked for what comes after it.
        cut = alone[-1] + 1


def _leave_trunk(session: Session) -> None:
    """Remember how the path that is left was cut off."""
    if session.trunk_id == "" and session.complete:
        return
    summary = session.summary
    seq = summary.seq if summary is not None and session.summary_active else 0
    session.trunks[session.trunk_id] = Trunk(session.through, session.uncovered, session.complete, seq)


def _enter_trunk(session: Session, bottom: str) -> None:
    session.trail = b""
    session.trunk_id = bottom
    trunk = session.trunks.pop(bottom, None)
    if bottom == "" and trunk is None:
        session.through = session.uncovered = 0
        session.complete = True
        session.summary_active = False
        return
    if trunk is None:
        session.through = session.uncovered = 0
        session.complete = False
        session.summary_active = False
        return
    summary = session.summary
    session.through = trunk.through
    session.uncovered = trunk.uncovered
    session.complete = trunk.complete
    session.summary_active = (
        bool(trunk.summary_seq) and summary is not None and summary.seq == trunk.summary_seq
    )
    if trunk.summary_seq and not session.summary_active:
        # Another summary took the place of this path's: how much it had covered is no longer known.
        session.complete = False


def prune_trunks(session: Session) -> None:
    """Only trunks that a held branch message hangs on are worth keeping."""
    if session.trunks:
        bottoms = {m.parent for m in session.branch_messages.values()}
        for trunk_id in [t for t in session.trunks if t not in bottoms]:
            del session.trunks[trunk_id]
        while len(session.trunks) > TRUNKS_MAX:
            del session.trunks[next(iter(session.trunks))]


def bound_branches(session: Session) -> None:
    """B2: while over a bound the leaf with the smallest seq leaves, so no held branch loses its middle."""
    branches = session.branch_messages
    while len(branches) > BRANCH_MESSAGES_MAX or session.branch_bytes > BRANCH_BYTES_MAX:
        parents = {m.parent for m in branches.values()}
        # Parents that came after their children can close a ring, which has no leaf: then the oldest.
        leaf = next((m for m in branches.values() if m.id not in parents), next(iter(branches.values())))
        del branches[leaf.id]
        session.branch_bytes -= leaf.size
        forget_messages(session, (leaf,))


def insert_after_call(session: Session, message: Message) -> None:
    """Place a result that belongs to calls off the head: after the last held answer to the same calls.

    What followed there now follows it, so the path keeps its order (W2). ``message.answers`` names at least
    one message that is held in the tree.
    """
    asked = set(message.answers)
    call = max(
        (m for m in (*session.recent, *session.branch_messages.values()) if m.seq in asked),
        key=lambda m: m.seq,
    )
    # Before it is placed: among branch messages it may be the one that leaves at once.
    session.held[message.id] = message
    if call.id in session.branch_messages:
        _insert_in_branch(session, call, message)
    else:
        _insert_in_recent(session, call, message)


def _insert_in_recent(session: Session, call: Message, message: Message) -> None:
    recent = session.recent
    at = recent.index(call) + 1
    while at < len(recent) and call.seq in recent[at].answers:
        at += 1
    message.altered()
    message.parent = recent[at - 1].id
    recent.insert(at, message)
    session.recent_bytes += message.size
    if at + 1 < len(recent):
        recent[at + 1].altered()
        recent[at + 1].parent = message.id
        _rehang_branches(session, message.parent, message.id, but=call)
    else:
        session.head = message.id


def _insert_in_branch(session: Session, call: Message, message: Message) -> None:
    place = call
    seen: set[str] = set()
    while place.id not in seen:
        seen.add(place.id)
        answer = next(
            (m for m in session.branch_messages.values() if m.parent == place.id and call.seq in m.answers),
            None,
        )
        if answer is None:
            break
        place = answer
    message.altered()
    message.parent = place.id
    _rehang_branches(session, place.id, message.id, but=call)
    session.branch_messages[message.id] = message
    session.branch_messages = dict(sorted(session.branch_messages.items(), key=lambda item: item[1].seq))
    session.branch_bytes += message.size
    bound_branches(session)
    session.enc_branches = session.enc_rest = session.enc_memory = None


def _rehang_branches(session: Session, old: str, new: str, *, but: Message) -> None:
    """Children of ``old`` off the active path follow ``new``, unless they are answers to the same call."""
    for message in session.branch_messages.values():
        if message.parent == old and message.id != new and but.seq not in message.answers:
            message.altered()
            message.parent = new
            session.enc_branches = session.enc_rest = None
