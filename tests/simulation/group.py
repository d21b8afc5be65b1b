"""The group coordinator: classic protocol, cooperative assignment, static members, transactional offsets.

What fences (measured): ``TxnOffsetCommit`` checks the member id and its generation, for a static member the
instance too, and nothing about partitions; an empty offset list or metadata without a membership is accepted
from anybody. A fetch of *stable* offsets is refused while a transaction that writes the offset is undecided
or unmarked.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

from confluent_kafka import KafkaError

from .kafka import Membership, raised
from .kernel import Kernel

SCAN_US: Final = 50_000

#: Which offset: of a partition of the topic the members subscribe to, or of another topic's.
Slot = int | tuple[str, int]


def slot_of(topic: str, partition: int) -> Slot:
    return (topic, partition) if topic.endswith(".batches") else partition


@dataclass(slots=True)
class Member:
    member_id: str
    instance: str
    timeout_us: int
    seen_us: int
    owned: frozenset[int] = frozenset()
    #: Has sent JoinGroup for the round being prepared.
    joined: bool = False
    #: Generation of the last round it took part in, and what it got.
    generation: int = -1
    given: frozenset[int] = frozenset()


@dataclass(frozen=True, slots=True)
class Offset:
    offset: int
    metadata: str
    #: Place in the offsets topic: a transaction's offset never replaces a newer one when its marker arrives
    #: late.
    at: int


class Group:
    def __init__(self, kernel: Kernel, name: str, partitions: int, chance: random.Random) -> None:
        self._kernel = kernel
        self.name = name
        self.partitions = partitions
        self._chance = chance
        self.members: dict[str, Member] = {}
        self._instances: dict[str, str] = {}
        self.generation = 0
        self.preparing = False
        #: Set by a fault: the next target assignment is drawn at random instead of being sticky.
        self.shuffle_next = False
        #: Partitions that the next rounds give to nobody.
        self.withheld: frozenset[int] = frozenset()
        self.offsets: dict[Slot, Offset] = {}
        self._pending: dict[int, dict[Slot, Offset]] = {}
        self._appended = 0
        self._ids = 0
        self.rebalances = 0
        self.fenced_commits = 0
        self.on_committed: Callable[[Slot, int], None] = lambda partition, offset: None
        kernel.after(SCAN_US, self._scan)

    # --- membership ----------------------------------------------------------------------------------

    def join(self, member_id: str, instance: str, owned: frozenset[int], timeout_us: int) -> str:
        """JoinGroup: the member id. The round's outcome is fetched with :meth:`outcome`."""
        known = self.members.get(member_id)
        if known is None:
            before = self._instances.get(instance)
            self._ids += 1
            member_id = f"{instance}-{self._ids}"
            member = Member(member_id, instance, timeout_us, self._kernel.now_us, owned)
            self._instances[instance] = member_id
            if (
                before is not None
                and (old := self.members.pop(before, None)) is not None
                and not self.preparing
            ):
                # A static member came back: same assignment, same generation, no rebalance.
                member.generation, member.given = self.generation, old.given
                member.owned = old.given
                self.members[member_id] = member
                self._kernel.trace("group", f"{member_id} replaces {before}")
                return member_id
            self.members[member_id] = member
            known = member
        known.owned = owned
        known.joined = True
        known.seen_us = self._kernel.now_us
        self.preparing = True
        self._complete()
        return known.member_id

    def outcome(self, member_id: str, after: int) -> tuple[int, frozenset[int]] | None:
        """Generation and partitions once the round is complete; ``after``: the generation known so far."""
        member = self.members.get(member_id)
        if member is None:
            raise raised(KafkaError.UNKNOWN_MEMBER_ID, "the coordinator does not know this member")
        member.seen_us = self._kernel.now_us
        if member.joined or member.generation <= after:
            return None
        return member.generation, member.given

    def heartbeat(self, member_id: str, instance: str, generation: int) -> int | None:
        """``None``, or the error code the member is told."""
        member = self.members.get(member_id)
        if member is None:
            if self._instances.get(instance) is not None:
                return int(KafkaError.FENCED_INSTANCE_ID)
            return int(KafkaError.UNKNOWN_MEMBER_ID)
        member.seen_us = self._kernel.now_us
        if self.preparing or member.generation != generation:
            return int(KafkaError.REBALANCE_IN_PROGRESS)
        return None

    def remove(self, member_id: str, why: str) -> None:
        """Session timeout, or an operator removes the member."""
        member = self.members.pop(member_id)
        if self._instances.get(member.instance) == member_id:
            del self._instances[member.instance]
        self._kernel.trace("group", f"{member_id} removed: {why}")
        self.preparing = bool(self.members)
        self._complete()

    def rebalance(self) -> None:
        if self.members:
            self.preparing = True

    def _scan(self) -> None:
        now = self._kernel.now_us
        for member in list(self.members.values()):
            if now - member.seen_us > member.timeout_us:
                self.remove(member.member_id, "session timeout")
        self._kernel.after(SCAN_US, self._scan)

    def _complete(self) -> None:
        if not self.preparing or not all(member.joined for member in self.members.values()):
            return
        self.preparing = False
        self.generation += 1
        self.rebalances += 1
        owner = {number: m.member_id for m in self.members.values() for number in m.owned}
        target = self._target(owner)
        for member in self.members.values():
            mine = [number for number in target[member.member_id] if number not in self.withheld]
            # Cooperative: what another member still owns is given only after it was revoked there.
            member.given = frozenset(n for n in mine if owner.get(n, member.member_id) == member.member_id)
            member.generation = self.generation
            member.joined = False
        shown = ", ".join(f"{m.member_id}={sorted(m.given)}" for m in self.members.values())
        self._kernel.trace("group", f"generation {self.generation}: {shown}")

    def _target(self, owner: dict[int, str]) -> dict[str, list[int]]:
        names = list(self.members)
        target: dict[str, list[int]] = {name: [] for name in names}
        if self.shuffle_next:
            self.shuffle_next = False
            for number in range(self.partitions):
                target[names[self._chance.randrange(len(names))]].append(number)
            return target
        most = -(-self.partitions // len(names))
        homeless: list[int] = []
        for number in range(self.partitions):
            name = owner.get(number)
            if name is not None and len(target[name]) < most:
                target[name].append(number)
            else:
                homeless.append(number)
        for number in homeless:
            least = min(names, key=lambda name: (len(target[name]), name))
            target[least].append(number)
        while True:
            least = min(names, key=lambda name: (len(target[name]), name))
            fullest = max(names, key=lambda name: (len(target[name]), name))
            if len(target[fullest]) - len(target[least]) <= 1:
                return target
            target[least].append(target[fullest].pop())

    def has_other_owner(self, partition: int, instance: str) -> bool:
        return any(partition in m.given and m.instance != instance for m in self.members.values())

    # --- offsets -------------------------------------------------------------------------------------

    def txn_commit(self, pid: int, offsets: Sequence[tuple[Slot, int, str]], who: Membership) -> None:
        """TxnOffsetCommit. Raises what fences."""
        if not offsets:
            return
        if who.generation >= 0 or who.member_id:
            member = self.members.get(who.member_id)
            if member is None:
                self.fenced_commits += 1
                if who.instance and who.instance in self._instances:
                    raise raised(
                        KafkaError.FENCED_INSTANCE_ID, "another member has the instance id", abort=True
                    )
                raise raised(KafkaError.UNKNOWN_MEMBER_ID, "the member is not in the group", abort=True)
            if member.generation != who.generation:
                self.fenced_commits += 1
                raise raised(KafkaError.ILLEGAL_GENERATION, "the generation has moved on", abort=True)
        pending = self._pending.setdefault(pid, {})
        for partition, offset, metadata in offsets:
            self._appended += 1
            pending[partition] = Offset(offset, metadata, self._appended)

    def pending(self, pid: int) -> dict[Slot, tuple[int, str]]:
        return {p: (o.offset, o.metadata) for p, o in self._pending.get(pid, {}).items()}

    def settle(self, pid: int, commit: bool) -> None:
        """The marker has reached the offsets topic."""
        for partition, offset in self._pending.pop(pid, {}).items():
            before = self.offsets.get(partition)
            if commit and (before is None or before.at < offset.at):
                self.offsets[partition] = offset
                self.on_committed(partition, offset.offset)

    def set_back(self, partition: Slot, offset: int) -> None:
        """``kafka-consumer-groups.sh --reset-offsets --to-offset``: no metadata."""
        self._appended += 1
        self.offsets[partition] = Offset(offset, "", self._appended)

    def unstable(self, partition: Slot) -> bool:
        return any(partition in pending for pending in self._pending.values())
