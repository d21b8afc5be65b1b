"""``refold verify effects``: tools with real effects, and every process around them killed at every boundary.

The pieces, in the order a run meets them: :mod:`plan` says what will happen for a seed, :mod:`gateway` is the
outside world (a process with simulators and a :mod:`ledger` of everything that really ran), :mod:`host` is an
agent process that plays conversations with the agent of :mod:`agent` or the user's own (:mod:`protocol`),
:mod:`watched` puts the named :mod:`boundaries` around the events it writes and :mod:`gatewaytools` around the
effects, :mod:`crew` keeps the agent processes, :mod:`killer` lets them die, :mod:`operator` rules on calls
whose outcome nobody can know, :mod:`judge` compares the ledger with the script and the state with the
journal, :mod:`run` does it all.

The judge's witness is the gateway's ledger. It is written by the outside world at the moment a call really
runs, and knows nothing of refold.
"""

from __future__ import annotations
