"""The SDK: publish what happened, ask what is so.

::

    async with Refold(bootstrap="127.0.0.1:9092") as rf:
        chat = rf.session("chat-1")
        await chat.append("Hello", role="user")
        context = await chat.context(format="openai")

Needs neither Faust nor RocksDB (a test imports it without them). Everything here is for one event loop;
:mod:`refold.client.sync` is a thin synchronous face of append, context and recover.
"""

from __future__ import annotations

from refold.client.client import Change, JournalItem, Refold
from refold.client.context import Context
from refold.client.events import SessionEvent
from refold.client.generations import Follow, Frame, Generation, LeaseLost, Outcome, ProviderFailed
from refold.client.generations.metering import Meter
from refold.client.ordering import EarlierEventFailed
from refold.client.positions import Position
from refold.client.receipts import Receipt, Refused, Ruling
from refold.client.recovery import PlanStep, Recovery
from refold.client.reduced import ReducedPart
from refold.client.session import Session
from refold.client.snapshots import SnapshotView
from refold.client.usage.admission import Overlimit
from refold.client.usage.usage import Usage, UsageWindow
from refold.core.envelope import Actor, SessionLink
from refold.wire.parts import Part

__all__ = [
    "Actor",
    "Change",
    "Context",
    "EarlierEventFailed",
    "Follow",
    "Frame",
    "Generation",
    "JournalItem",
    "LeaseLost",
    "Meter",
    "Outcome",
    "Overlimit",
    "Part",
    "PlanStep",
    "Position",
    "ProviderFailed",
    "Receipt",
    "Recovery",
    "ReducedPart",
    "Refold",
    "Refused",
    "Ruling",
    "Session",
    "SessionEvent",
    "SessionLink",
    "SnapshotView",
    "Usage",
    "UsageWindow",
]
