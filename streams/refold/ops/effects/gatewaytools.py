"""The conversations' tools, declared with the SDK as an application would; their bodies ask the gateway.

What a body makes of the gateway's answers is what a careful application would: "nothing happened" is
:class:`~refold.client.tools.NotDone`, a lost answer stays an exception, so that the tool's declared effect
decides. The boundaries around the effect are here, in front of the request and behind its answer: nothing
stands between them and the outside world.
"""

from __future__ import annotations

import inspect
import uuid
from collections.abc import Collection
from typing import Any, Final

from refold.client.session import Session
from refold.client.tools import NOT_DONE, UNKNOWN, Done, NotDone, Tool, ToolCall
from refold.demo.dataset import data_directory, parameter_names
from refold.errors import UnavailableError
from refold.ops.effects.boundaries import Boundaries
from refold.ops.effects.gatewayclient import AnswerLost, GatewayClient, KeyVoided, TurnedAway
from refold.ops.effects.plan import Kind, kind_of

#: A request of the gateway takes up to 30 ms; a stalled machine must not look like a lost answer.
TIMEOUT_S: Final = 20.0
#: A gateway that turns away 2 % of the requests must not use up what recovery needs too.
ATTEMPTS: Final = 10
#: The parameter that takes the call; no simulator has one of this name.
HANDLE: Final = "refold_call"
#: Sabotage result-before-effect: what is recorded before anybody knows.
ASSUMED: Final = "assumed to have worked"


class GatewayTools:
    """Makes the tools of a session. One per process."""

    def __init__(
        self, gateway: GatewayClient, seed: int, boundaries: Boundaries, sabotage: str | None
    ) -> None:
        self._gateway = gateway
        self._seed = seed
        self._boundaries = boundaries
        self._sabotage = sabotage
        self._parameters = parameter_names(data_directory())

    def declare(self, session: Session, names: Collection[str]) -> list[Tool]:
        """One tool per name, of the kind that the seed gives it in this session."""
        return [self._tool(session.id, name) for name in sorted(names)]

    def _tool(self, session: str, name: str) -> Tool:
        kind = kind_of(self._seed, session, name)

        async def body(**given: Any) -> str:
            call: ToolCall = given.pop(HANDLE)
            arguments = {key: value for key, value in given.items() if value is not None}
            return await self._effect(session, name, kind, call, arguments)

        async def lookup(key: str) -> Any:
            operation = key.rpartition("/")[0]
            self._boundaries.reach("before_lookup", session, operation, kind)
            try:
                answer = await self._gateway.lookup(session, key, name)
            except UnavailableError:
                return UNKNOWN
            self._boundaries.reach("after_lookup", session, operation, kind)
            if answer["outcome"] == "done":
                return Done(answer["result"])
            return NOT_DONE if answer["outcome"] == "not_done" else UNKNOWN

        # The SDK reads a signature to make the model's schema; here it comes from the data set.
        keyword = inspect.Parameter.KEYWORD_ONLY
        body.__signature__ = inspect.Signature(  # type: ignore[attr-defined]
            [
                inspect.Parameter(HANDLE, keyword),
                *(inspect.Parameter(p, keyword, default=None) for p in self._parameters.get(name, ())),
            ]
        )
        body.__annotations__ = {HANDLE: ToolCall}
        return Tool(
            body,
            name=name,
            description=f"{name} of the outside world",
            effect="idempotent" if kind == "idempotent" else "external",
            lookup=lookup if kind == "lookup" else None,
            timeout=TIMEOUT_S,
            retry_on=(AnswerLost,),
            attempts_max=ATTEMPTS,
        )

    async def _effect(
        self, session: str, name: str, kind: Kind, call: ToolCall, arguments: dict[str, Any]
    ) -> str:
        operation, key = call.operation_id, call.key
        if self._sabotage == "unstable-key":
            key = f"{operation}-{uuid.uuid4().hex[:8]}/{call.attempt}"
        if self._sabotage == "result-before-effect":
            await call.session.tool_completed(operation, ASSUMED, call_id=call.call_id)
        self._boundaries.reach("before_effect", session, operation, kind)
        then = "lost"
        try:
            result = await self._gateway.execute(session, key, name, arguments)
            then = "executed"
        except TurnedAway as err:
            then = "turned_away"
            raise NotDone(str(err), retryable=True) from err
        except KeyVoided as err:
            then = "refused"
            raise NotDone(str(err)) from err
        finally:
            self._boundaries.effect_over(operation, then)
        self._boundaries.reach("after_effect", session, operation, kind)
        return result
