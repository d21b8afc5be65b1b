"""Sessions in records of an older schema, whose limits were larger: brought within the present ones.

Only what may leave leaves, as if the limits had been these all the time. Open calls never do: a session may
go on with OLDER_OPEN_CALLS_MAX of them and takes no more before they are below OPEN_CALLS_MAX.
"""

from __future__ import annotations

from refold.core.context import elide, trim
from refold.core.ledger import bound_calls
from refold.core.limits import SYSTEM_BYTES_MAX, TOOLS_BYTES_MAX, WINDOW_BYTES_MAX
from refold.core.session import Session
from refold.core.tree import bound_branches


def fit(session: Session) -> None:
    """Cheap where nothing is over a limit. Caches of what changes are dropped."""
    if session.window_bytes > WINDOW_BYTES_MAX:
        session.window_bytes = WINDOW_BYTES_MAX
        session.enc_settings = None
    trim(session)
    branches = len(session.branch_messages)
    bound_branches(session)
    if len(session.branch_messages) != branches:
        session.enc_branches = session.enc_rest = session.enc_memory = None
    if session.calls_bytes > TOOLS_BYTES_MAX:
        bound_calls(session)
        session.enc_rest = None
    for message in session.system:
        if session.system_bytes <= SYSTEM_BYTES_MAX:
            break
        # Oldest first, they keep their places; the journal has their words.
        if message.body is not None:
            session.system_bytes -= message.size
            elide(message)
            session.system_bytes += message.size
            session.enc_context = None
