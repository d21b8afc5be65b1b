"""The events of a run's holder: fenced, sent again until they are ruled on, never without the lease.

Every one carries holder and epoch, and the fold refuses what another holder has taken over (rule N2). Here it
is not even sent: the lease is looked at first. A refusal that means "not yours any more" ends this process's
part in the run.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

from refold.client.agents.outcomes import RunLeft
from refold.client.generations.journalling import ruled
from refold.client.receipts import Refused, Ruling
from refold.errors import TransientError, UnavailableError

if TYPE_CHECKING:
    from refold.client.agents.lease import RunLease
    from refold.client.session import Session

#: The fold has spoken: the run is another's, over, gone, or nobody's while its session is in quarantine.
LOST: Final = frozenset({"stale_holder", "already_final", "unknown_run", "lease_held", "quarantined"})
#: No step begins in a closed session; the run is given back until it is reopened (rule N9).
CLOSED: Final = "session_closed"


class Writer:
    """One holder's events of one run. ``allowed``: codes that the caller of :meth:`write` handles itself."""

    def __init__(self, session: Session, run_id: str, holder: str, epoch: int) -> None:
        self.session = session
        self.run_id = run_id
        self.holder = holder
        self.epoch = epoch
        self.lease: RunLease | None = None
        #: Makes this process leave a run whose session is closed.
        self.closed: Callable[[], RunLeft] = lambda: RunLeft("lost", "the session is closed")
        #: Called with every ruling that is in effect: the highest seq is what reads wait for.
        self.heard: Callable[[int], None] = lambda _: None

    async def write(
        self,
        event_type: str,
        payload: dict[str, Any],
        *,
        step: str | None = None,
        attempt: int | None = None,
        allowed: frozenset[str] = frozenset(),
    ) -> Ruling:
        """The ruling: in effect, or of an ``allowed`` code. Raises RunLeft when the run is not ours any more
        or nothing answered for as long as the lease holds, Refused for what else the fold does not take."""
        lease = self.lease
        if lease is None:
            raise RunLeft("lost", "there is no lease")
        lease.check()
        try:
            ruling = await ruled(
                self.session,
                event_type,
                {"run_id": self.run_id, "holder": self.holder, "epoch": self.epoch, **payload},
                timeout_s=lease.left(),
                run=self.run_id,
                step=step,
                attempt=attempt,
            )
        except (TransientError, UnavailableError) as error:
            lease.check()
            raise RunLeft("unavailable", f"nothing answered while the lease was held: {error}") from error
        if ruling.in_effect:
            self.heard(ruling.seq or 0)
            return ruling
        if ruling.code in allowed:
            return ruling
        if ruling.code == CLOSED:
            raise self.closed()
        if ruling.code in LOST:
            lease.lose(f"{ruling.code}: {ruling.reason}")
            lease.check()
        raise Refused(f"{event_type} of run {self.run_id}", ruling)

    async def renew(self, lease_ms: int, version: str, accepts: tuple[str, ...], timeout_s: float) -> Ruling:
        """One renewal's ruling; raises where nothing answers."""
        payload = leased(self.run_id, self.holder, self.epoch, lease_ms, version, accepts)
        return await ruled(self.session, "RunLeased", payload, timeout_s=timeout_s, run=self.run_id)


def leased(
    run_id: str, holder: str, epoch: int, lease_ms: int, version: str, accepts: tuple[str, ...]
) -> dict[str, Any]:
    """The payload of RunLeased."""
    return {
        "run_id": run_id,
        "holder": holder,
        "lease_ms": lease_ms,
        "epoch": epoch,
        "version": version,
        "accepts": list(accepts),
    }
