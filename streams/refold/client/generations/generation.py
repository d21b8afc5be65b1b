"""The handle: for the function that generates, and for whoever asked for it or asks again."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from refold.client.generations.join import Continued, LookedUp
from refold.client.generations.limits import RULING_WAIT_S
from refold.client.generations.prefix import NO_PREFIX, Prefix
from refold.errors import TransientError, UsageError

if TYPE_CHECKING:
    from refold.client.generations.follow import Follow
    from refold.client.generations.recording import Chunk, Recording
    from refold.client.generations.registry import Provider
    from refold.client.generations.service import Generations
    from refold.client.generations.terms import Terms
    from refold.client.receipts import Ruling
    from refold.client.session import Session

#: Nothing else says "the text was continued by another process" to a generator.
FIRST_ATTEMPT: Final = 1


@dataclass(frozen=True, slots=True)
class Outcome:
    """How a generation ended. ``state``: finished, stopped or failed. ``seq``: of the journal event that
    ended it. ``text``: all text, also of a failed one. ``usage``: tokens of all attempts, lost ones included;
    ``None`` when the owner no longer knows."""

    state: str
    message_id: str | None
    seq: int
    text: str
    usage: dict[str, int] | None
    error: str | None = None


class Generation:
    """Inside ``answer(g)`` it records; elsewhere it follows, stops and waits.

    ``attempt`` 1 is the first; a later one goes on after another process died: ``mode`` is ``continue`` (say
    what follows ``prefix``) or ``restart`` (begin anew, ``prefix`` is empty).
    """

    def __init__(self, service: Generations, session: Session, terms: Terms) -> None:
        self.session = session
        self.attempt = FIRST_ATTEMPT
        self.mode = "restart"
        #: The provider's id of the response that was being recorded, for a lookup.
        self.provider_response_id: str | None = None
        self._service = service
        self._terms = terms
        self._recording: Recording | None = None
        self._prefix: Prefix = NO_PREFIX
        self._overlap = True
        #: How it ended, when it ended in this process under this handle.
        self.outcome: Outcome | None = None

    def __repr__(self) -> str:
        return f"Generation({self.id} of {self.session.tenant}/{self.session.id}, attempt {self.attempt})"

    @property
    def id(self) -> str:
        return self._terms.generation_id

    @property
    def message_id(self) -> str:
        """The id its message will have."""
        return self._terms.message_id

    @property
    def reply_to(self) -> str | None:
        return self._terms.reply_to

    @property
    def key(self) -> str | None:
        return self._terms.key

    @property
    def params(self) -> Any:
        """As given to ``generate``, through JSON; a fresh copy each time."""
        return self._terms.values

    @property
    def terms(self) -> Terms:
        return self._terms

    @property
    def prefix(self) -> str:
        """Text that exists already; what is recorded follows it."""
        return self._prefix.text

    @property
    def recording(self) -> bool:
        """True inside the process that generates now."""
        return self._recording is not None

    @property
    def produced(self) -> int:
        """Batches that are durable, where this process generates; else 0."""
        return 0 if self._recording is None else self._recording.produced

    @property
    def stopped(self) -> bool:
        """Whether a stop has come: ``record`` ends by itself then."""
        return self._recording is not None and self._recording.stopped.is_set()

    def record(
        self,
        stream: Provider,
        format: str = "auto",  # noqa: A002 - the word of the whole SDK
    ) -> AsyncGenerator[Chunk, None]:
        """Record a provider's stream; yields its chunks: after they are durable (strict), or before
        (relaxed).

        ``stream``: what the provider's SDK returned with ``stream=True``, an iterable or async iterable of
        its chunks (dicts, SDK objects, SSE lines), or of text (``format="text"``). ``format``: openai,
        openai-responses, anthropic, text, or auto. Ends when the stream ends or the generation is stopped;
        may be called several times, one after the other.

        Raises ProviderFailed for an error in the stream, what the stream itself raises, LeaseLost when
        another process has taken over (let it pass). Outside ``answer(g)``: UsageError.
        """
        recording = self._recording
        if recording is None:
            raise UsageError("this handle follows: only the function given to generate() records")
        return recording.record(stream, format, self._continued)

    def _continued(self) -> Continued | None:
        recording = self._recording
        if recording is not None and self._prefix.deltas and recording.produced == self._prefix.produced:
            # Only the first stream of an attempt goes on with what was there; later ones are their own.
            return Continued(self._prefix, recording.next_part, overlap=self._overlap)
        return None

    def follow(self, after: int = 0, client: str | None = None) -> Follow:
        """As ``rf.follow``."""
        return self._service.follow(self.session, self.id, after=after, client=client)

    async def stop(self, reason: str | None = None) -> Ruling:
        """End it with what is there. An event: works from any process, and for a generation whose process
        died. Returns the ruling; a generation that has ended refuses it (``already_final``)."""
        return await self._service.stop(self.session, self.id, reason)

    async def result(self, timeout: float | None = None) -> Outcome:
        """Wait for its end, at most ``timeout`` seconds. Raises TransientError when it is not over by
        then."""
        text: list[str] = []
        try:
            async with asyncio.timeout(timeout):
                # Where it runs here, its end is known here; nothing needs to be read back.
                await self._service.ran(self.session, self.id)
                if self.outcome is not None:
                    return self.outcome
                async for frame in self.follow():
                    if frame.kind == "reset":
                        text.clear()
                    text.append(frame.text)
                    if frame.kind == "end":
                        return Outcome(
                            frame.state,
                            frame.message_id,
                            frame.journal_seq,
                            "".join(text),
                            await self._service.usage(self.session, self.id),
                            frame.error,
                        )
        except TimeoutError:
            pass
        raise TransientError(
            f"generation {self.id} has not ended within {RULING_WAIT_S if timeout is None else timeout:g} s; "
            "it goes on, wait again"
        )

    # For the run

    def begin(
        self, recording: Recording, attempt: int, mode: str, prefix: Prefix, *, overlap: bool = True
    ) -> None:
        """It records from now on, as this attempt."""
        self._recording = recording
        self._overlap = overlap
        self.attempt = attempt
        self.mode = mode
        self._prefix = prefix

    async def record_looked_up(self, stream: Provider) -> None:
        """Record a response that the provider says again from its beginning. Raises InvalidRecord
        (``conflict``) when it is another one."""
        recording = self._recording
        if recording is None:
            raise UsageError("this handle follows")
        async with aclosing(recording.record(stream, "auto", lambda: LookedUp(self._prefix))) as chunks:
            async for _ in chunks:
                pass

    def rest(self) -> None:
        """It follows again."""
        self._recording = None
