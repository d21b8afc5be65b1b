"""The comparer, pure: every difference by its name, none where there is none."""

from __future__ import annotations

from collections.abc import Iterator

from hypothesis import given
from hypothesis import strategies as st

from refold.engine import rows
from refold.engine.validation.compare import Difference, Kind, Said, differences, digest

KEYS = st.sampled_from([b"a", b"b", b"c", b"d", b"e"])
#: What happens to a key: a snapshot's text, or a deletion.
CHANGES = st.lists(st.tuples(KEYS, st.none() | st.binary(max_size=4)), max_size=30)


class Session:
    """The log and the DB that follows it, one change at a time."""

    def __init__(self) -> None:
        self.log: list[tuple[bytes, bytes | None]] = []
        self.rows: dict[bytes, bytes] = {}
        self._seqs: dict[bytes, int] = {}

    def change(self, key: bytes, text: bytes | None) -> None:
        if text is None:
            self.rows.pop(key, None)
            self._seqs.pop(key, None)
            self.log.append((key, None))
        else:
            seq = self._seqs[key] = self._seqs.get(key, 0) + 1
            self.rows[key] = rows.pack(seq, b"", text)
            self.log.append((key, self.rows[key]))


def said(log: list[tuple[int, bytes, bytes | None]]) -> Iterator[tuple[bytes, Said]]:
    last: dict[bytes, Said] = {}
    for offset, key, row in log:
        last[key] = Said(
            offset, -1 if row is None else rows.seq_of(row), None if row is None else digest(row)
        )
    return iter(sorted(last.items()))


def found(
    log: list[tuple[int, bytes, bytes | None]], db: dict[bytes, bytes], later: frozenset[bytes] = frozenset()
) -> list[Difference]:
    return list(
        differences(
            said(log), iter(sorted(db.items())), seq_of=rows.seq_of, superseded=lambda key: key in later
        )
    )


def numbered(session: Session) -> list[tuple[int, bytes, bytes | None]]:
    return [(offset, key, row) for offset, (key, row) in enumerate(session.log)]


@given(CHANGES)
def test_a_copy_that_followed_its_log_has_no_differences(changes: list[tuple[bytes, bytes | None]]) -> None:
    """Deleted and opened again, at lower seqs, included."""
    session = Session()
    for change in changes:
        session.change(*change)
    assert found(numbered(session), session.rows) == []


@given(CHANGES, CHANGES, st.data())
def test_commits_and_compaction_meanwhile_are_no_differences(
    before: list[tuple[bytes, bytes | None]], after: list[tuple[bytes, bytes | None]], data: st.DataObject
) -> None:
    """Goal: the log is read while commits go on and compaction runs. Method: the copy is as of the end of
    ``before``; of the records of each key that has a newer one, an arbitrary prefix is gone (what compaction
    may take at whatever moment); what comes in ``after`` marks its keys, as the reader does."""
    session = Session()
    for change in before:
        session.change(*change)
    copy, place = dict(session.rows), len(session.log)
    for change in after:
        session.change(*change)
    log = numbered(session)
    kept: list[tuple[int, bytes, bytes | None]] = []
    for key in {key for _, key, _ in log}:
        mine = [record for record in log if record[1] == key]
        gone = data.draw(st.integers(0, len(mine) - 1), label=f"taken of {key!r}")
        # A reader that was past the first ones before they were taken has seen these.
        seen = data.draw(st.integers(0, gone), label="seen before")
        kept += mine[:seen] + mine[gone:]
    kept.sort()
    later = frozenset(key for offset, key, _ in kept if offset >= place)
    assert found([record for record in kept if record[0] < place], copy, later) == []


@given(CHANGES.filter(bool), st.data())
def test_every_planted_difference_is_found_by_its_name(
    changes: list[tuple[bytes, bytes | None]], data: st.DataObject
) -> None:
    session = Session()
    for change in changes:
        session.change(*change)
    log, copy = numbered(session), dict(session.rows)
    key = data.draw(st.sampled_from(sorted({key for _, key, _ in log})))
    offset, row = [(at, row) for at, one, row in log if one == key][-1]
    kind: Kind
    if row is None:
        kind, copy[key] = "deleted", rows.pack(1, b"", b"risen")
    else:
        kinds: list[Kind] = ["missing", "older", "newer", "other"]
        kind = data.draw(st.sampled_from(kinds))
        seq = rows.seq_of(row)
        if kind == "missing":
            del copy[key]
        else:
            shift = {"older": -1, "newer": 1, "other": 0}[kind]
            copy[key] = rows.pack(seq + shift, b"", rows.snapshot_of(row) + b"!")
    assert found(log, copy) == [Difference(kind, key, offset)]
    # The same of a key that has newer records proves nothing.
    assert found(log, copy, frozenset({key})) == []


@given(CHANGES, st.binary(min_size=1, max_size=3).map(lambda key: b"x" + key))
def test_a_row_of_which_the_log_says_nothing(changes: list[tuple[bytes, bytes | None]], key: bytes) -> None:
    session = Session()
    for change in changes:
        session.change(*change)
    copy = {**session.rows, key: rows.pack(1, b"", b"")}
    assert found(numbered(session), copy) == [Difference("unsaid", key, -1)]


def test_a_row_that_is_none_is_other_content() -> None:
    session = Session()
    session.change(b"a", b"text")
    assert found(numbered(session), {b"a": b"??"}) == [Difference("other", b"a", 0)]


def test_rows_without_seqs_are_the_same_or_others() -> None:
    record = [(b"h#0", Said(4, -1, digest(b"block")))]
    same = differences(iter(record), iter([(b"h#0", b"block")]), seq_of=None, superseded=lambda _: False)
    assert list(same) == []
    other = differences(iter(record), iter([(b"h#0", b"blocK")]), seq_of=None, superseded=lambda _: False)
    assert [one.kind for one in other] == ["other"]
