"""Named facts: bounded JSON values that the context carries beside the messages."""

from __future__ import annotations

from refold.core.events import FactRemoved, FactSet
from refold.core.jsontext import is_valid_json
from refold.core.limits import FACT_BYTES_MAX, FACTS_BYTES_MAX, FACTS_MAX
from refold.core.messages import bad_id
from refold.core.rulings import Duplicate, Rejected
from refold.core.session import Fact, Session


def rule_fact_set(session: Session, event: FactSet) -> Rejected | None:
    wrong = bad_id(event.name, "the fact's name")
    if wrong is not None:
        return wrong
    size = len(event.value.encode())
    if size > FACT_BYTES_MAX:
        return Rejected("too_large", f"a fact has at most {FACT_BYTES_MAX} bytes")
    if not is_valid_json(event.value):
        return Rejected("bad_json", "the fact's value is not valid JSON")
    old = session.facts.get(event.name)
    if old is None and len(session.facts) >= FACTS_MAX:
        return Rejected("facts_full", f"{FACTS_MAX} facts are held")
    if session.facts_bytes - (0 if old is None else old.size) + size > FACTS_BYTES_MAX:
        return Rejected("facts_full", f"the facts would have more than {FACTS_BYTES_MAX} bytes")
    return None


def apply_fact_set(session: Session, seq: int, event: FactSet) -> None:
    old = session.facts.get(event.name)
    size = len(event.value.encode())
    session.facts_bytes += size - (0 if old is None else old.size)
    # A fact set again keeps its place.
    session.facts[event.name] = Fact(event.value, seq, size)
    session.enc_rest = None


def rule_fact_removed(session: Session, event: FactRemoved) -> Duplicate | Rejected | None:
    wrong = bad_id(event.name, "the fact's name")
    if wrong is not None:
        return wrong
    return None if event.name in session.facts else Duplicate(0)


def apply_fact_removed(session: Session, event: FactRemoved) -> None:
    fact = session.facts.pop(event.name)
    session.facts_bytes -= fact.size
    session.enc_rest = None
