"""All generations of one client: what runs here, what is followed here, and the parts they share."""

from __future__ import annotations

import asyncio
import hashlib
import logging
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

from refold.client.generations.acks import Acks
from refold.client.generations.archive import end_of
from refold.client.generations.backfill import Backfills
from refold.client.generations.courier import Courier
from refold.client.generations.ears import Ears
from refold.client.generations.follow import Follow
from refold.client.generations.generation import Generation
from refold.client.generations.hub import Hub
from refold.client.generations.journalling import ruled
from refold.client.generations.limits import CLOSE_FLUSH_S, DRAIN_S, FOLLOWERS_MAX, RULING_WAIT_S, RUNNING_MAX
from refold.client.generations.places import Place, place_of, row_of
from refold.client.generations.registry import Answer, Generators
from refold.client.generations.run import Grant, Run
from refold.client.generations.takeover import guard
from refold.client.generations.terms import Asked, Terms, make_terms
from refold.client.messages import default_actor
from refold.client.receipts import Refused, Ruling
from refold.core.progress import Ack
from refold.errors import NotFound, RefoldError, TransientError, UnavailableError

if TYPE_CHECKING:
    from refold.client.connection import Connection
    from refold.client.session import Session

log = logging.getLogger("refold.client")

Identity = tuple[bytes, str]


class Generations:
    """Made when the client opens. Use from one event loop."""

    def __init__(self, connection: Connection, generators: Generators) -> None:
        self.connection = connection
        self.generators = generators
        batches = connection.names.batches
        self.backfills = Backfills(connection.readers, batches)
        self.hub = Hub(connection.reader_config, batches, self.backfills)
        self.ears = Ears(connection.reader_config, batches)
        self.acks = Acks(connection.sender, batches)
        options = connection.options
        self.courier = Courier(
            options.kafka_config("producer"), options.settings.client.delivery_timeout_ms, batches
        )
        #: Distinct at every start of a process, so that a process never takes a former self's lease for its
        #: own.
        self.holder = f"{options.producer_id[:80]}/{options.producer_epoch}"
        self.closed = False
        self._running: dict[Identity, tuple[Generation, asyncio.Task[None]]] = {}
        #: By what is asked as well: the fold decides between two that ask for different things under one key.
        self._starting: dict[tuple[Identity, Asked], asyncio.Task[Generation]] = {}
        self._guards: dict[Identity, asyncio.Task[None]] = {}
        #: Generations a take-over of this process is on the way for.
        self.claiming: set[Identity] = set()
        self._followers = 0
        self._closing = False

    # Starting

    async def start(self, session: Session, answer: Answer | str, **options: Any) -> Generation:
        """As ``session.generate``."""
        generator = self.generators.of(answer)
        terms = make_terms(session.key, generator.name, **options)
        identity = (session.key, terms.generation_id)
        running = self._running.get(identity)
        if running is not None and running[0].terms.asked == terms.asked:
            return running[0]
        asked = (identity, terms.asked)
        task = self._starting.get(asked)
        if task is None:
            self.check_room()
            task = asyncio.create_task(self._start(session, terms), name="refold-generate")
            self._starting[asked] = task
            task.add_done_callback(lambda done: self._started(asked, done))
        # Whoever asked may be cancelled; what was begun for them is not.
        return await asyncio.shield(task)

    def _started(self, asked: tuple[Identity, Asked], task: asyncio.Task[Generation]) -> None:
        del self._starting[asked]
        if not task.cancelled():
            task.exception()  # Its caller may be gone; asyncio must not call that forgotten.

    async def _start(self, session: Session, terms: Terms) -> Generation:
        generation = Generation(self, session, terms)
        self.courier.open()
        ear = await self.ears.listen(session.key, terms.generation_id, session.partition)
        granted = False
        try:
            asked_at = asyncio.get_running_loop().time()
            ruling = await ruled(
                session,
                "GenerationStarted",
                terms.started(self.holder, session.last_seq),
                timeout_s=RULING_WAIT_S,
                correlation_id=terms.key,
                actor=default_actor("assistant"),
            )
            if ruling.accepted:
                self.spawn(generation, Grant(1, "restart", asked_at, ear))
                granted = True
                return generation
        finally:
            if not granted:
                self.ears.unlisten(ear)
        await self._check_same(session, terms, ruling)
        self.guard(generation, own=await self._own(session, terms, ruling))
        return generation

    async def _own(self, session: Session, terms: Terms, ruling: Ruling) -> bool:
        """A duplicate of what this process itself sent: its first try was written after all, or an attempt
        ran here and was left. Which of the two nobody here knows, so it is gone on with as another attempt:
        that goes on behind what the first one may have recorded."""
        if ruling.status != "duplicate" or self.runs(session.key, terms.generation_id):
            return False
        row = await row_of(self.connection, session, terms.generation_id)
        return row is not None and row["state"] == "started" and row["holder"] == self.holder

    async def _check_same(self, session: Session, terms: Terms, ruling: Ruling) -> None:
        """Raises Refused unless the refusal means that the very same generation exists already."""
        if ruling.in_effect:
            return
        refused = Refused(f"GenerationStarted {terms.generation_id}", ruling)
        if ruling.code != "conflict" or terms.key is None:
            raise refused
        row = await row_of(self.connection, session, terms.generation_id)
        if row is None:
            # Its row has made room for newer ones; the message it ended in is what holds the id.
            if await end_of(session, terms.generation_id) is None:
                raise refused
            return
        message_id, reply_to, generator, params, durability = terms.asked
        digest = None if params is None else hashlib.sha256(params.encode()).hexdigest()
        names = ("message_id", "reply_to", "generator", "params_digest", "durability")
        if tuple(row[name] for name in names) != (message_id, reply_to, generator, digest, durability):
            raise refused

    # Running

    @property
    def running(self) -> int:
        return len(self._running)

    def runs(self, key: bytes, generation: str) -> bool:
        """Whether this process generates it now."""
        return (key, generation) in self._running

    async def ran(self, session: Session, generation: str) -> None:
        """Wait while this process generates it; at once when it does not."""
        while (held := self._running.get((session.key, generation))) is not None:
            await asyncio.wait({held[1]})

    def check_room(self) -> None:
        """Raises UnavailableError when no further answer may run here."""
        if self._closing:
            raise UnavailableError("this client is closing: nothing is begun in it any more")
        if len(self._running) + len(self._starting) >= RUNNING_MAX:
            raise UnavailableError(
                f"{RUNNING_MAX} generations run in this client: wait for one to end, or use another process",
                retry_after_s=1.0,
            )

    def spawn(self, generation: Generation, grant: Grant, answer: Answer | None = None) -> asyncio.Task[None]:
        """Run an attempt as a task of the client."""
        generator = self.generators.get(generation.terms.generator)
        made = answer or (None if generator is None else generator.answer)
        if made is None:
            raise RefoldError(f"no generator {generation.terms.generator!r} is registered in this process")
        if self.closed:
            # Nothing that it says would be sent; and an attempt that fails must not end what another may
            # finish.
            raise TransientError("the client was closed: the generation is another process's to go on with")
        run = Run(self, generation, grant, made)
        identity = (generation.session.key, generation.id)
        task = asyncio.create_task(run.perform(), name=f"refold-generation-{generation.id}")
        self._running[identity] = (generation, task)
        task.add_done_callback(lambda done: self._ran(identity, done))
        return task

    def _ran(self, identity: Identity, task: asyncio.Task[None]) -> None:
        held = self._running.get(identity)
        if held is not None and held[1] is task:
            del self._running[identity]
        if not task.cancelled() and (error := task.exception()) is not None:
            # A restart is the take-over's to arrange; anything else leaves the generation to another process.
            log.warning("generation_left id=%s: %s", identity[1], type(error).__name__)

    def guard(self, generation: Generation, *, own: bool = False) -> None:
        """Take over should its process fall silent: whoever asks for an answer may also give it. ``own``: its
        process is this one, so at once."""
        identity = (generation.session.key, generation.id)
        if identity in self._guards or self.closed or (len(self._guards) >= RUNNING_MAX and not own):
            return
        task = asyncio.create_task(guard(self, generation, own=own), name="refold-guard")
        self._guards[identity] = task
        task.add_done_callback(lambda done: self._guarded(identity, done))

    def _guarded(self, identity: Identity, task: asyncio.Task[None]) -> None:
        self._guards.pop(identity, None)
        if not task.cancelled():
            task.exception()

    # Following

    def follow(
        self, session: Session, generation: str, *, after: int = 0, client: str | None = None
    ) -> Follow:
        return Follow(self, session, generation, after, client)

    @asynccontextmanager
    async def follower(self) -> AsyncGenerator[None, None]:
        """Counts one follower. Raises UnavailableError when there are too many."""
        if self._followers >= FOLLOWERS_MAX:
            raise UnavailableError(f"{FOLLOWERS_MAX} followers are open in this client", retry_after_s=1.0)
        self._followers += 1
        try:
            yield
        finally:
            self._followers -= 1

    async def locate(self, session: Session, generation: str) -> Place:
        """From a track of this process where there is one: the hundredth follower asks nobody."""
        track = self.hub.known(session.key, generation)
        progress = None if track is None else track.transcript.progress
        if track is not None and progress is not None and not progress.ended:
            return Place(
                session.partition,
                track.first,
                progress.attempt,
                progress.text_attempt,
                progress.produced,
                "",
                progress.finish,
                progress.provider_response_id,
                progress.usage_total._asdict(),
            )
        return await place_of(self.connection, session, generation)

    async def ack(
        self, session: Session, generation: str, client: str, seq: int, *, attempt: int | None = None
    ) -> None:
        if attempt is None:
            attempt = (await self.locate(session, generation)).text_attempt
        await self.acks.send(session.key, session.partition, Ack(generation, attempt, client, seq))

    async def stop(self, session: Session, generation: str, reason: str | None) -> Ruling:
        payload = {"generation_id": generation, "reason": reason}
        return await ruled(session, "GenerationStopped", payload, timeout_s=RULING_WAIT_S)

    async def usage(self, session: Session, generation: str) -> dict[str, int] | None:
        try:
            return (await place_of(self.connection, session, generation)).usage
        except (NotFound, UnavailableError):
            return None

    # The end

    async def close(self, drain_s: float = DRAIN_S) -> None:
        """Let running answers come to an end for ``drain_s``; the rest is left to another process."""
        self._closing = True
        until = asyncio.get_running_loop().time() + drain_s
        try:
            # Also what had been asked for before: it is accepted, and runs, while this waits.
            while (tasks := self._answering()) and (left := until - asyncio.get_running_loop().time()) > 0:
                await asyncio.wait(tasks, timeout=left)
        finally:
            self.closed = True
            # Before the courier: an answer that cannot send any more would fail, and end its generation.
            over = [*self._answering(), *self._guards.values()]
            for task in over:
                task.cancel()
            await asyncio.gather(*over, return_exceptions=True)
            await self.courier.close(CLOSE_FLUSH_S)
            await self.ears.close()
            await self.hub.close()

    def _answering(self) -> list[asyncio.Task[Any]]:
        return [*(task for _, task in self._running.values()), *self._starting.values()]
