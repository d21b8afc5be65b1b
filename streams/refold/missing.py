"""What is not there, in the same words wherever it is missed: in the SDK and in the commands."""

from __future__ import annotations

from refold.errors import NotFound


def no_session(tenant: str, session: str) -> NotFound:
    """For a session that is not there. Names the tenant: another one is the usual cause."""
    return NotFound(
        f"session {session!r} of tenant {tenant!r} does not exist: it was never opened, it was deleted, or no"
        " worker has ruled on its events yet (`refold worker status`). Another tenant is named with --tenant,"
        " in code with tenant=."
    )


def no_run(tenant: str, session: str, run: str) -> NotFound:
    """For a session that is there without this run."""
    return NotFound(
        f"session {session!r} of tenant {tenant!r} holds no run {run!r}: `refold session show` lists the ones"
        " it holds, `refold run list` the open ones of all; of those that ended it keeps the last few, its"
        " journal has all (`refold session events`)."
    )
