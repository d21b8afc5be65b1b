"""Compare what is there with what should be there. Every difference is a line; nothing is averaged away."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from refold.core.codes import REJECT_CODES
from refold.ops.verify.oracle import Expected, Place, World
from refold.ops.verify.readback import Record
from refold.wire.codec import decode
from refold.wire.journal import decode_journal

#: Lines kept to show; the counts go on.
DIFFERENCES_SHOWN_MAX: Final = 50

#: Class of reason in the oracle -> codes the product may give. The bytes decide between the first ones.
CODES: Final[Mapping[str, frozenset[str]]] = {
    "key": frozenset({"bad_key", "key_mismatch"}),
    "bytes": frozenset(
        {
            "empty_value",
            "bad_frame",
            "bad_magic",
            "unknown_schema",
            "unknown_subject",
            "undecodable",
            "bad_text",
            "lone_surrogate",
        }
    ),
    "conflict": frozenset({"conflict"}),
    "expected_seq": frozenset({"expected_seq"}),
}

Topic = Mapping[int, Sequence[Record]]


@dataclass(slots=True)
class Verdict:
    """``mismatches``: sessions or records that differ; ``regressions``: values seen going back or
    repeating.
    """

    mismatches: int = 0
    regressions: int = 0
    rpo_events: int = 0
    differences: list[str] = field(default_factory=list)

    def differ(self, text: str, *, regression: bool = False) -> None:
        if regression:
            self.regressions += 1
        else:
            self.mismatches += 1
        if len(self.differences) < DIFFERENCES_SHOWN_MAX:
            self.differences.append(text)

    @property
    def clean(self) -> bool:
        return not (self.mismatches or self.regressions or self.rpo_events)


def judge(world: World, inbox: Topic, journal: Topic, state: Topic, rejected: Topic) -> Verdict:
    """All comparisons. The topics are as read in read_committed."""
    verdict = Verdict()
    _judge_journal(verdict, world, journal)
    _judge_state(verdict, world, state)
    _judge_rejected(verdict, world, inbox, rejected)
    _judge_forwards(verdict, world, inbox)
    return verdict


def _judge_journal(verdict: Verdict, world: World, journal: Topic) -> None:
    """Per session: gapless from 1, no repeat, exactly the accepted events in the oracle's order."""
    seen: dict[bytes, list[tuple[Place, str, str]]] = defaultdict(list)
    for records in journal.values():
        for record in records:
            entry = decode_journal(record.value or b"")
            key = record.key or b""
            events = seen[key]
            if entry.seq != len(events) + 1:
                name = key.decode(errors="replace")
                verdict.differ(f"journal {name}: seq {entry.seq} after {len(events)}", regression=True)
            place = (entry.partition, entry.offset)
            events.append((place, entry.env.event_id, entry.env.type))
    for key in sorted(world.sessions.keys() | seen.keys()):
        expected = world.sessions.get(key, Expected()).accepted
        if expected != seen[key]:
            missing = Counter(expected) - Counter(seen[key])
            extra = Counter(seen[key]) - Counter(expected)
            verdict.rpo_events += missing.total()
            first = next(
                (i for i, (a, b) in enumerate(zip(expected, seen[key], strict=False), 1) if a != b),
                min(len(expected), len(seen[key])) + 1,
            )
            verdict.differ(
                f"journal {key.decode()}: {len(seen[key])} events, expected {len(expected)}; "
                f"{missing.total()} missing, {extra.total()} too many; first difference at seq {first}"
            )


def _judge_state(verdict: Verdict, world: World, state: Topic) -> None:
    """Per session: seq never goes back on the way, and the last record says what the oracle says."""
    last: dict[bytes, Mapping[str, Any]] = {}
    for records in state.values():
        for record in records:
            key = record.key or b""
            if record.value is None:
                verdict.differ(f"state {key.decode(errors='replace')}: deleted, but nobody asked for that")
                continue
            snapshot = decode(record.value, "refold.SessionSnapshot").record
            before = last.get(key)
            if before is not None and (
                snapshot["seq"] <= before["seq"] or _frontier(snapshot) < _frontier(before)
            ):
                verdict.differ(
                    f"state {key.decode()}: seq {snapshot['seq']} after {before['seq']}", regression=True
                )
            last[key] = snapshot
    for key in sorted(world.sessions.keys() | last.keys()):
        expected = world.sessions.get(key, Expected())
        found = last.get(key)
        if found is None and not expected.accepted:
            continue  # Only refused events: there is no session.
        if wrong := _state_differences(expected, found):
            verdict.differ(f"state {key.decode()}: {'; '.join(wrong)}")


def _frontier(snapshot: Mapping[str, Any]) -> int:
    return max((int(entry["next_offset"]) for entry in snapshot["frontier"]), default=0)


def _state_differences(expected: Expected, found: Mapping[str, Any] | None) -> list[str]:
    if found is None:
        return [f"missing, expected seq {expected.seq}"]
    wrong = []
    if found["seq"] != expected.seq:
        wrong.append(f"seq {found['seq']}, expected {expected.seq}")
    facts = {fact["name"]: (fact["value"], fact["seq"]) for fact in found["facts"]}
    if facts != expected.facts:
        wrong.append("facts differ")
    context = found["context"]
    # Results of tools become messages too; the oracle keeps those in its tool table.
    recent = [
        (m["seq"], "".join(part["text"] or "" for part in m["content"]))
        for m in context["recent_messages"]
        if not m["from_tool_event"]
    ]
    # No message in neither or in both of "trimmed" and "recent": the split is at `through`, exactly.
    if recent != [message for message in expected.messages if message[0] > context["through"]]:
        wrong.append("recent messages differ")
    if expected.messages and not recent:
        wrong.append("no recent message left")
    tools = {row["operation_id"]: row["state"] for row in found["tools"]}
    for operation, status in expected.tools.items():
        # Finished calls may leave the bounded table; open ones never.
        if tools.get(operation, "done") != status:
            wrong.append(f"call {operation} is {tools.get(operation, 'absent')}, expected {status}")
    if unknown := tools.keys() - expected.tools.keys():
        wrong.append(f"{len(unknown)} calls nobody made")
    return wrong


def _judge_rejected(verdict: Verdict, world: World, inbox: Topic, rejected: Topic) -> None:
    """Each refused record once, with its bytes, its place and a code of the closed list; nothing else."""
    at = {(p, record.offset): record for p, records in inbox.items() for record in records}
    found: dict[Place, list[Record]] = defaultdict(list)
    for records in rejected.values():
        for record in records:
            origin = (record.header("refold-origin") or b"//").decode().rsplit("/", 2)
            place = (int(origin[1] or -1), int(origin[2] or -1))
            found[place].append(record)
    for place, kind in world.rejected.items():
        copies = found.pop(place, [])
        if len(copies) != 1:
            verdict.differ(f"rejected {place}: {len(copies)} records, expected 1")
            continue
        code = (copies[0].header("refold-code") or b"").decode()
        if code not in REJECT_CODES or code not in CODES[kind]:
            verdict.differ(f"rejected {place}: code {code!r}, expected one of {sorted(CODES[kind])}")
        if (copies[0].key, copies[0].value) != (at[place].key, at[place].value):
            verdict.differ(f"rejected {place}: not the original bytes")
    for place, copies in found.items():
        verdict.differ(f"rejected {place}: {len(copies)} records, expected none")


def _judge_forwards(verdict: Verdict, world: World, inbox: Topic) -> None:
    """Every record on a wrong partition has exactly one copy, with its bytes; nothing else was forwarded."""
    at = {(p, record.offset): record for p, records in inbox.items() for record in records}
    for place in world.misrouted:
        if len(world.forwards.get(place, [])) != 1:
            verdict.differ(
                f"misrouted {place}: forwarded {len(world.forwards.get(place, []))} times, expected once"
            )
    for origin, copies in world.forwards.items():
        if origin not in world.misrouted:
            verdict.differ(f"forwarded {origin}: was not on a wrong partition")
        elif at[copies[0]].key != at[origin].key:
            verdict.differ(f"forwarded {origin}: the copy has another key")
