"""Going on with a generation whose process fell silent.

The fold decides who may: GenerationAttempted is accepted when the lease is over, and its attempt number
fences whatever the former process still writes. Here it is only noticed, asked for, and done, in this order:

1. the row and the journal say what was to be generated; nothing is asked for that could not be done,
2. the lease is asked for, after a random moment, so that a fleet does not ask at once,
3. the prefix is read up to the own begin,
4. a response the provider still has is recorded again from its beginning, what is known passed over; else the
   answer is called to continue, or to begin anew.
"""

from __future__ import annotations

import asyncio
import logging
import random
from contextlib import aclosing
from typing import TYPE_CHECKING, Any, Final, Literal

from refold.client.generations.generation import Generation
from refold.client.generations.journalling import ruled
from refold.client.generations.limits import CLAIM_PAUSE_S, CLAIM_PAUSE_S_MAX, JITTER_S_MAX, RULING_WAIT_S
from refold.client.generations.places import Place, place_of, row_of
from refold.client.generations.prefix import NO_PREFIX, Prefix, read_prefix
from refold.client.generations.registry import Answer, Generator
from refold.client.generations.run import Grant, RestartNeeded
from refold.client.generations.terms import Terms, terms_of
from refold.client.owners import START_ONE
from refold.core.progress import TokenUsage
from refold.errors import InvalidRecord, NotFound, RefoldError, TransientError, UnavailableError

if TYPE_CHECKING:
    from refold.client.generations.service import Generations
    from refold.client.session import Session

log = logging.getLogger("refold.client")

Claimed = Literal["ran", "ended", "elsewhere", "foreign"]
"""An attempt ran here; it is over; somebody goes on with it; no generator of its name is registered here."""

OPEN_STATES: Final = ("started", "stopping")

REASON_SILENT: Final = "its process fell silent"
REASON_RESTART: Final = "the looked-up response was another one"


async def guard(service: Generations, generation: Generation, *, own: bool = False) -> None:
    """Watch one generation that another process generates; take it over when that one falls silent. ``own``:
    this process was to generate it and does not, so it is asked for at once."""
    session, terms = generation.session, generation.terms
    loop = asyncio.get_running_loop()
    while True:
        try:
            if own:
                own = False
                await claim(service, session, generation.id, loop.time())
            place = await service.locate(session, generation.id)
            if place.ended:
                return
            async with service.hub.track(session.key, generation.id, place.partition, place.first) as track:
                while not track.ended:
                    if track.failure is not None:
                        raise track.failure
                    heard = loop.time()
                    offset = _offset(track)
                    try:
                        async with asyncio.timeout(terms.lease_s):
                            while _offset(track) == offset and not track.ended:
                                await track.changed()
                    except TimeoutError:
                        if service.runs(session.key, generation.id):
                            continue
                        await claim(service, session, generation.id, heard + terms.lease_s)
                return
        except NotFound:
            return
        except (TransientError, UnavailableError):
            await asyncio.sleep(CLAIM_PAUSE_S)


def _offset(track: Any) -> int:
    progress = track.transcript.progress
    return -1 if progress is None else int(progress.last_offset)


async def claim(service: Generations, session: Session, generation_id: str, due: float) -> Claimed:
    """Take it over and run the attempt, to its end or until it is lost.

    ``due``: monotonic time from which on its lease may be over. One claim of a generation at a time in one
    process: for the fold all of them have the same holder.
    """
    identity = (session.key, generation_id)
    if identity in service.claiming or service.runs(*identity):
        return "elsewhere"
    service.claiming.add(identity)
    try:
        return await _claim(service, session, generation_id, due)
    finally:
        service.claiming.discard(identity)


async def _claim(service: Generations, session: Session, generation_id: str, due: float) -> Claimed:
    loop = asyncio.get_running_loop()
    terms: Terms | None = None
    pause = CLAIM_PAUSE_S
    attempt = 0
    while True:
        place = await place_of(service.connection, session, generation_id)
        row = place.row
        if place.ended:
            return "ended"
        if not place.asked:
            raise UnavailableError(
                f"no worker answers: nobody can grant a lease; {START_ONE}", retry_after_s=1.0
            )
        if row is None or row["state"] not in OPEN_STATES:
            return "ended"
        if attempt and row["attempt"] != attempt:
            return "elsewhere"
        attempt = row["attempt"]
        generator = service.generators.get(row["generator"])
        if generator is None:
            return "foreign"
        if terms is None:
            terms = await _terms(session, row)
        if terms is None:
            return "foreign"
        service.check_room()
        jitter = random.uniform(0.0, min(JITTER_S_MAX, terms.lease_s / 4))
        await asyncio.sleep(max(0.0, due - loop.time()) + jitter)
        task = await _attempt(service, session, terms, generator, place, attempt + 1)
        if task is not None:
            await _performed(service, session, terms, generator, task)
            return "ran"
        # Held, by a renewal that came in between or by the clock of the fold: it says more with time.
        if pause >= CLAIM_PAUSE_S_MAX:
            return "elsewhere"
        await asyncio.sleep(pause)
        pause = min(2 * pause, CLAIM_PAUSE_S_MAX)


async def _terms(session: Session, row: dict[str, Any]) -> Terms | None:
    async with aclosing(session.events(row["started_seq"] - 1, 1)) as events:
        async for event in events:
            return terms_of(event)
    return None


async def _attempt(
    service: Generations,
    session: Session,
    terms: Terms,
    generator: Generator,
    place: Place,
    attempt: int,
    *,
    restart: bool = False,
) -> asyncio.Task[None] | None:
    """Ask for the attempt and run it; ``None`` when the lease is held or the attempt is another's."""
    stopping = place.row is not None and place.row["state"] == "stopping"
    looks_up = generator.lookup is not None and place.provider_response_id is not None
    goes_on = not restart and (
        stopping or looks_up or place.finish is not None or generator.mode == "continue"
    )
    mode = "continue" if goes_on else "restart"
    key, partition = session.key, session.partition
    service.courier.open()
    ear = await service.ears.listen(key, terms.generation_id, partition)
    task: asyncio.Task[None] | None = None
    try:
        asked_at = asyncio.get_running_loop().time()
        ruling = await ruled(
            session,
            "GenerationAttempted",
            {
                "generation_id": terms.generation_id,
                "attempt": attempt,
                "mode": mode,
                "holder": service.holder,
                "lease_ms": terms.lease_ms,
                "reason": REASON_RESTART if restart else REASON_SILENT,
            },
            timeout_s=RULING_WAIT_S,
        )
        if not ruling.in_effect:
            return None
        log.info("generation_taken_over id=%s attempt=%d mode=%s", terms.generation_id, attempt, mode)
        # Asked once more: a stop between the first look and the ear would not have been heard.
        row = await row_of(service.connection, session, terms.generation_id)
        stopping = stopping or (row is not None and row["state"] == "stopping")
        prefix: Prefix | None = NO_PREFIX
        if mode == "continue":
            prefix = await _prefix(service, session, terms, place, attempt)
            if prefix is not None and not (
                prefix.complete or stopping or looks_up or generator.mode == "continue"
            ):
                # It had a finish reason, but more was to come, and this generator only begins anew.
                prefix = None
        if prefix is not None:
            usage = TokenUsage(**{name: place.usage.get(name, 0) for name in TokenUsage._fields})
            grant = Grant(attempt, mode, asked_at, ear, prefix, usage, stopping, generator.overlap)
            generation = Generation(service, session, terms)
            generation.provider_response_id = place.provider_response_id
            answer = _looked_up(generator) if mode == "continue" and looks_up else generator.answer
            task = service.spawn(generation, grant, answer)
            return task
    finally:
        if task is None:
            service.ears.unlisten(ear)
    return await _attempt(service, session, terms, generator, place, attempt + 1, restart=True)


async def _prefix(
    service: Generations, session: Session, terms: Terms, place: Place, attempt: int
) -> Prefix | None:
    """``None`` when retention has eaten the beginning: what cannot be read cannot be gone on with."""
    try:
        return await read_prefix(
            service.backfills, place.partition, session.key, terms.generation_id, place.first, attempt
        )
    except NotFound:
        return None


def _looked_up(generator: Generator) -> Answer:
    """Record the response the provider still has; where it has none, or another one, as without a lookup."""
    lookup = generator.lookup

    async def look_up_or_answer(g: Generation) -> None:
        stream = None if lookup is None else await lookup(g)
        if stream is None:
            if generator.mode == "restart" and g.prefix:
                raise RestartNeeded
            await generator.answer(g)
            return
        try:
            await g.record_looked_up(stream)
        except InvalidRecord as error:
            if error.code != "conflict":
                raise
            raise RestartNeeded from error

    return look_up_or_answer


async def _performed(
    service: Generations, session: Session, terms: Terms, generator: Generator, task: asyncio.Task[None]
) -> None:
    """Wait for the attempt; where its lookup led nowhere, begin anew under the lease it holds."""
    try:
        await asyncio.shield(task)
    except RestartNeeded:
        place = await place_of(service.connection, session, terms.generation_id)
        if place.row is None or place.row["state"] not in OPEN_STATES:
            return
        again = await _attempt(
            service, session, terms, generator, place, place.row["attempt"] + 1, restart=True
        )
        if again is not None:
            await asyncio.shield(again)
    except RefoldError as error:
        log.warning("generation_left id=%s: %s", terms.generation_id, error)
