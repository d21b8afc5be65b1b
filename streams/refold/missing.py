"""What is not there, in the same words wherever it is missed: in the SDK and in the commands."""

from __future__ import annotations

from collections.abc import Sequence

from refold.errors import ConfigError, NotFound


def no_session(tenant: str, session: str) -> NotFound:
    """For a session that is not there. Names the tenant: another one is the usual cause."""
    of, slash, rest = session.partition("/")
    half = f" An id goes without its tenant: {rest!r}, with --tenant {of}." if slash and rest else ""
    return NotFound(
        f"session {session!r} of tenant {tenant!r} does not exist: it was never opened, it was deleted, or no"
        " worker has ruled on its events yet (`refold worker status`). Another tenant is named with --tenant,"
        f" in code with tenant=.{half}"
    )


def no_run(tenant: str, session: str, run: str) -> NotFound:
    """For a session that is there without this run."""
    return NotFound(
        f"session {session!r} of tenant {tenant!r} holds no run {run!r}: `refold session show` lists the ones"
        " it holds, `refold run list` the open ones of all; of those that ended it keeps the last few, its"
        " journal has all (`refold session events`)."
    )


def no_topic(topic: str) -> ConfigError:
    """For a topic of refold's that the cluster has not."""
    return ConfigError(
        f"topic {topic!r} does not exist on this cluster: create the topics with `refold topology apply`, or"
        " check the prefix (--prefix, REFOLD_TOPIC_PREFIX) and the brokers (--bootstrap, REFOLD_BOOTSTRAP)"
    )


def no_parent(session: str, parent: str, heads: Sequence[str]) -> str:
    """For a path that was begun under a message the session does not have (rule B3), with the way back.
    ``heads``: the last messages of its other branches, the newest last."""
    head, flag, option = (heads[-1], "", "") if heads else ("MESSAGE", " --rebuild", ", rebuild=True")
    named = repr(head) if heads else head
    of_journal = "" if heads else " (MESSAGE: one that `refold session events` lists)"
    return (
        f"the active path goes on from message {parent!r}, which session {session!r} does not have: what was"
        f" said before is on another branch. The way back: `refold session switch {session} {head}{flag}`, in"
        f" the SDK `switch_branch({named}{option})`{of_journal}; then append again what was said since, after"
        " the head (no parent) or after a message that `refold session show` lists"
    )
