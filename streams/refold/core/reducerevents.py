"""The events about reducers' parts. Both state a whole part: from there on, a fold of the journal agrees with
what is stored whatever reducers it has (:mod:`refold.core.reduced`)."""

from __future__ import annotations


class ReducerEvent:
    """``at_seq``: up to where the part is folded. ``state`` is canonical JSON."""

    __slots__ = ("at_seq", "name", "state", "version")

    def __init__(self, name: str, version: int, at_seq: int, state: bytes) -> None:
        self.name = name
        self.version = version
        self.at_seq = at_seq
        self.state = state


class ReducerQuarantined(ReducerEvent):
    """The worker's: the part stands still since ``at_seq``, for the reason in ``error``."""

    __slots__ = ("error",)

    def __init__(self, name: str, version: int, at_seq: int, state: bytes, error: str) -> None:
        super().__init__(name, version, at_seq, state)
        self.error = error


class ReducerReleased(ReducerEvent):
    """The part was folded anew from the journal up to ``at_seq``; it goes on from there."""

    __slots__ = ()
