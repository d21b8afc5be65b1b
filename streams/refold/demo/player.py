"""One conversation as it goes when nothing dies: the reference that the agents' conversations must equal.

Per turn: the user's message; if tools are needed, the assistant's message that asks for them, then each
call as intent → started (accepted, or the tool does not run) → effect → result; at last the assistant's
answer. Message ids and call ids follow from the script, as those of :mod:`refold.ops.effects.agent` do.
"""

from __future__ import annotations

from collections.abc import Awaitable
from dataclasses import dataclass, field
from typing import Any, Final

from refold.client.receipts import Receipt
from refold.client.writes import SessionWrites
from refold.demo.dataset import Call, Conversation, Turn
from refold.demo.model import Model
from refold.demo.simulators import Simulators, ToolError

#: Who runs the tools, in the ledger of the session.
HOLDER: Final = "demo-agent"
SYSTEM_PROMPT: Final = (
    "You are an assistant with tools. Use them when the user asks for something they can do."
)


@dataclass(slots=True)
class Played:
    """What one conversation did: receipts of every event (id, place) and the tools' own ledger."""

    session: str
    receipts: list[Receipt] = field(default_factory=list)
    ledger: list[Call] = field(default_factory=list)


class Player:
    """Plays one conversation into ``session``."""

    def __init__(self, conversation: Conversation, session: SessionWrites, model: Model) -> None:
        self._conversation = conversation
        self._session = session
        self._model = model
        self._simulators = Simulators.of(conversation)
        self._transcript: list[dict[str, Any]] = []
        self.played = Played(conversation.session, ledger=self._simulators.ledger)

    async def play(self) -> Played:
        """Raises what the SDK raises: nothing is retried here, so nothing can be repeated here."""
        name = self._conversation.session
        await self._note(self._session.append(SYSTEM_PROMPT, role="system", message_id=f"{name}/system"))
        self._transcript.append({"role": "system", "content": SYSTEM_PROMPT})
        for number, turn in enumerate(self._conversation.turns):
            await self._turn(f"{name}/t{number}", turn)
        return self.played

    async def _turn(self, turn_id: str, turn: Turn) -> None:
        await self._message(f"{turn_id}/user", {"role": "user", "content": turn.user})
        results = []
        if turn.calls:
            asked_by = f"{turn_id}/calls"
            text = await self._model.announce(self._transcript, [call.tool for call in turn.calls])
            asked = [
                {
                    "id": f"{turn_id}/c{index}",
                    "type": "function",
                    "function": {"name": call.tool, "arguments": call.arguments},
                }
                for index, call in enumerate(turn.calls)
            ]
            await self._message(asked_by, {"role": "assistant", "content": text, "tool_calls": asked})
            for index, call in enumerate(turn.calls):
                results.append(await self._call(f"{turn_id}/c{index}", asked_by, index, call))
        answer = await self._model.close(self._transcript, results)
        await self._message(f"{turn_id}/answer", {"role": "assistant", "content": answer})

    async def _call(self, operation: str, asked_by: str, index: int, call: Call) -> str:
        session, said = self._session, f"{operation}/result"
        await self._note(
            session.tool_intended(
                operation, call.tool, call.arguments, call_id=operation, asked_by=asked_by, index=index
            )
        )
        # Returns only once the fold has accepted the start: whatever dies before leaves a call that never
        # ran.
        await self._note(session.tool_started(operation, holder=HOLDER))
        try:
            result = self._simulators.run(call)
        except ToolError as err:
            result = str(err)
            await self._note(
                session.tool_failed(operation, result, call_id=operation, result_message_id=said)
            )
        else:
            await self._note(
                session.tool_completed(operation, result, call_id=operation, result_message_id=said)
            )
        self._transcript.append({"role": "tool", "tool_call_id": operation, "content": result})
        return result

    async def _message(self, message_id: str, message: dict[str, Any]) -> None:
        self._transcript.append(message)
        await self._note(self._session.append(message, message_id=message_id))

    async def _note(self, append: Awaitable[Receipt]) -> None:
        self.played.receipts.append(await append)
