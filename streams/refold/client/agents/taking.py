"""Asking for a run: the lease the fold grants to one process, and how not to ask all at once.

Every process hears of a ready run in the same moment. Each waits a random moment within a window that grows
with every refusal and shrinks with every grant, and does not ask when it hears meanwhile that the run was
taken. Alone, a process asks at once.
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from refold.client.agents.limits import JITTER_S_MAX, JITTER_S_MIN
from refold.client.agents.points import POINTS
from refold.client.agents.writer import leased
from refold.client.generations.journalling import ruled
from refold.client.ids import new_id
from refold.client.receipts import Ruling
from refold.client.tools.clocks import lease_clock

if TYPE_CHECKING:
    from refold.client.agents.agent import Agent
    from refold.client.session import Session
    from refold.core.work import WorkItem

#: Of a holder's name, behind the process's: a grant is ours or nobody's.
NONCE_CHARS: Final = 16

#: Of the window, after a grant. Refusals double it, so it settles where log(1 / 0.9) / log 2 = 15 refusals
#: come on 100 grants, however many processes there are (with 0.75, 38 were measured with three).
SHRINK: Final = 0.9


class Contention:
    """How long to wait before asking. ``chance``: uniform in [0, 1)."""

    def __init__(self) -> None:
        self.window_s = 0.0

    def jitter(self, chance: float | None = None) -> float:
        return self.window_s * (random.random() if chance is None else chance)

    def refused(self) -> None:
        self.window_s = min(JITTER_S_MAX, max(JITTER_S_MIN, 2 * self.window_s))

    def granted(self) -> None:
        self.window_s *= SHRINK
        if self.window_s < JITTER_S_MIN:
            self.window_s = 0.0


@dataclass(frozen=True, slots=True)
class Grant:
    """``sent_at``: the lease clock before it was asked for. ``seq``: of the grant in the journal."""

    run_id: str
    holder: str
    epoch: int
    sent_at: float
    seq: int


async def take(agent: Agent, session: Session, item: WorkItem, process: str) -> Grant | Ruling:
    """The grant, or the refusal. Raises TransientError or UnavailableError where nothing answers: should it
    have been granted all the same, the lease runs out by itself."""
    run_id = item.run or ""
    POINTS.reach("before_lease", run_id)
    holder = f"{process}/{new_id()[:NONCE_CHARS]}"
    epoch = item.epoch + 1
    sent_at = lease_clock()
    ruling = await ruled(
        session,
        "RunLeased",
        leased(run_id, holder, epoch, agent.lease_ms, agent.version, agent.accepts),
        timeout_s=agent.lease_s,
        run=run_id,
    )
    if not ruling.in_effect:
        return ruling
    POINTS.reach("after_lease", run_id)
    return Grant(run_id, holder, epoch, sent_at, ruling.seq or 0)
