"""``session.generate``: mixed into :class:`refold.client.session.Session`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal, cast

from refold.client.generations.limits import LEASE_S_DEFAULT
from refold.errors import UsageError

if TYPE_CHECKING:
    from refold.client.generations.follow import Follow
    from refold.client.generations.generation import Generation
    from refold.client.generations.metering import Metered
    from refold.client.generations.registry import Answer
    from refold.client.generations.service import Generations
    from refold.client.session import Session

Durability = Literal["strict", "relaxed"]


class SessionGenerations:
    _generations: Generations | None

    async def generate(
        self,
        answer: Answer | str,
        *,
        reply_to: str | None = None,
        key: str | None = None,
        params: Any = None,
        lease: float = LEASE_S_DEFAULT,
        durability: Durability = "strict",
        message_id: str | None = None,
        meter: Metered | None = None,
    ) -> Generation:
        """Let ``answer(g)`` generate a message of this session; returns when the fold has accepted its start.

        ``answer``, a function or the name of a registered one, runs as a task of the client: cancelling the
        caller does not end it. ``key`` makes it
        idempotent, in this session and from any process: the second caller with the same key and arguments
        gets a handle that follows (also of a generation that has ended). ``reply_to``: the message it
        answers; ``None`` continues the active path as of its end. ``params``: any JSON value; another process
        gets it back from the journal. ``lease``: seconds after which another process may go on if this one is
        silent. ``durability``: what ``g.record`` yields is durable (strict), or will be (relaxed).
        ``meter``: a Meter or ``rf.usage(...)``: its tokens are recorded as usage, once, whichever process
        ends it.

        Raises Refused (``conflict``: the key was used with other arguments; ``session_closed`` …),
        UnavailableError when too many run in this client, UsageError, TransientError when no worker ruled.
        """
        return await self._service().start(
            cast("Session", self),
            answer,
            reply_to=reply_to,
            key=key,
            params=params,
            lease=lease,
            durability=durability,
            message_id=message_id,
            meter=meter,
        )

    def follow(self, generation: str, *, after: int = 0, client: str | None = None) -> Follow:
        """As ``rf.follow``, of this session."""
        return self._service().follow(cast("Session", self), generation, after=after, client=client)

    def _service(self) -> Generations:
        if self._generations is None:
            raise UsageError("this session was not made by an open client: use `rf.session(...)`")
        return self._generations
