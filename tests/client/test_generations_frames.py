"""Frames, cursors and the joining of streams: pure, no loop and no broker."""

from __future__ import annotations

import itertools
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from client.generation_items import G, batch, begin, end, frames, joined
from refold.client.generations.composing import compose, name_calls
from refold.client.generations.frames import Cursor, Frame, Item, Transcript, parse_frame_id
from refold.client.generations.ids import answer_id, check_client, check_name, generation_id
from refold.client.generations.join import Continued, LookedUp, Numbered
from refold.client.generations.prefix import Prefix
from refold.core.progress import Ack, Batch, Delta
from refold.errors import InvalidRecord, UsageError

FAMILY = "한국어 \U0001f468‍\U0001f469‍\U0001f467 ok"


def cut(data: bytes, places: list[int]) -> list[bytes]:
    edges = [0, *sorted({place % (len(data) + 1) for place in places}), len(data)]
    return [data[a:b] for a, b in itertools.pairwise(edges)]


@given(st.lists(st.integers(0, 1_000), max_size=12))
def test_text_is_whole_characters_wherever_batches_are_cut(places: list[int]) -> None:
    """Goal (D14): any cut of the bytes gives the same text, no frame ends inside a character."""
    pieces = [piece for piece in cut(FAMILY.encode(), places) if piece]
    shown = frames([begin(), *(batch(n, piece) for n, piece in enumerate(pieces, 1)), end()])
    assert joined(shown) == FAMILY
    assert all("�" not in frame.text for frame in shown)


def test_a_character_that_never_ends_is_shown_with_the_end() -> None:
    shown = frames([begin(), batch(1, b"a\xed\x95"), end()])
    assert [frame.text for frame in shown] == ["a", "�"]
    assert compose([Delta("text", 0, b"a\xed\x95")])[0].text == "a�"


def test_repeats_gaps_and_fenced_batches_are_not_shown() -> None:
    """Goal (D10): what comes again is shown once; a lower attempt and what comes after the end never."""
    items: list[Item] = [
        begin(),
        batch(1, "a"),
        batch(2, "b"),
        batch(1, "a"),
        batch(2, "b"),
        batch(4, "x"),
        begin(2, "continue"),
        batch(3, "ZOMBIE"),
        batch(3, "c", attempt=2),
        end(attempt=2),
        batch(4, "LATE", attempt=2),
    ]
    shown = frames(items)
    assert joined(shown) == "abc"
    assert [frame.seq for frame in shown if frame.kind == "delta"] == [1, 2, 3]


def test_a_restart_resets_and_counts_from_one() -> None:
    shown = frames([begin(), batch(1, "a"), begin(2, "restart"), batch(1, "b", attempt=2), end(attempt=2)])
    assert [(f.kind, f.attempt, f.seq) for f in shown] == [
        ("delta", 1, 1),
        ("reset", 2, 0),
        ("delta", 2, 1),
        ("end", 2, 1),
    ]
    assert joined(shown) == "b"


def test_heartbeats_and_acks_show_nothing() -> None:
    assert frames([begin(), batch(0), Ack(G, 1, "c", 0)]) == []


def test_other_kinds_are_parts_not_text() -> None:
    deltas = (
        Delta("reasoning", 0, b"hm"),
        Delta("text", 1, b"hi"),
        Delta("tool_call", 2, b"", "call-1", "refund"),
        Delta("tool_call", 2, b'{"a":1}'),
    )
    (frame,) = frames([begin(), Batch(G, 1, 1, deltas)])
    assert frame.text == "hi"
    assert [(p.kind, p.text, p.call_id, p.name) for p in frame.parts] == [
        ("reasoning", "hm", None, None),
        ("tool_call", "", "call-1", "refund"),
        ("tool_call", '{"a":1}', None, None),
    ]
    assert frame.data()["parts"][0] == {"kind": "reasoning", "part": 0, "text": "hm"}


# Cursors


def run(cursor: Cursor, shown: list[Frame]) -> list[tuple[str, int, int]]:
    return [(f.kind, f.attempt, f.seq) for frame in shown for f in cursor.take(frame)]


def test_a_cursor_goes_on_after_its_place() -> None:
    shown = frames([begin(), *(batch(n, str(n)) for n in range(1, 5)), end()])
    assert run(Cursor(1, 2), shown) == [("delta", 1, 3), ("delta", 1, 4), ("end", 1, 4)]


def test_a_cursor_of_a_text_that_is_gone_is_reset() -> None:
    """Goal: whoever had attempt 1 is told to forget it, also when it reads only what is left of attempt 2."""
    shown = frames([begin(2, "restart"), batch(1, "b", attempt=2), end(attempt=2)])
    assert run(Cursor(1, 7), shown) == [("reset", 2, 0), ("delta", 2, 1), ("end", 2, 1)]


def test_a_cursor_with_a_bare_number_is_reset_when_the_text_begins_anew() -> None:
    cursor = Cursor(0, 1)
    shown = frames([begin(), begin(2, "restart"), batch(1, "b", attempt=2)])
    assert run(cursor, shown) == [("reset", 2, 0), ("delta", 2, 1)]


def test_frames_read_again_are_given_once() -> None:
    """Goal: a follower that falls back to reading from the beginning repeats nothing."""
    shown = frames([begin(), *(batch(n, str(n)) for n in range(1, 30)), end()])
    random_source = random.Random(7)
    cursor, got = Cursor(), []
    while not cursor.ended:
        start = random_source.randrange(len(shown))
        if shown[start].seq > cursor.seq + 1:
            start = 0
        got += run(cursor, shown[start : start + random_source.randrange(1, 9)])
    assert got == [*(("delta", 1, n) for n in range(1, 30)), ("end", 1, 29)]


@pytest.mark.parametrize("text", ["", "g", "g:1", "g:x:1", "g:1:-1", "g:1:²", ":1:2", "g:1:" + "9" * 30])
def test_ids_of_others_are_not_taken(text: str) -> None:
    assert parse_frame_id(text) is None


def test_a_frames_id_comes_back() -> None:
    assert parse_frame_id(Frame("delta", "g-a:b", 3, 14).id) == ("g-a:b", 3, 14)


# Ids


def test_ids_are_derived_from_session_and_key() -> None:
    assert generation_id(b"t/s", "k") == generation_id(b"t/s", "k") != generation_id(b"t/s2", "k")
    assert generation_id(b"t/s", None) != generation_id(b"t/s", None)
    assert answer_id(generation_id(b"t/s", "k")).startswith("m-")


@pytest.mark.parametrize("name", ["", "x" * 129, "a\nb"])
def test_names_the_fold_would_refuse_are_refused_here(name: str) -> None:
    with pytest.raises(UsageError):
        check_name("message_id", name)


def test_a_client_name_fits_an_ack() -> None:
    check_client("x" * 64)
    with pytest.raises(UsageError):
        check_client("x" * 65)


# Joining


def prefix_of(*deltas: Delta) -> Prefix:
    return Prefix(deltas, len(deltas), sum(len(d.data) for d in deltas if d.kind == "text"))


def test_a_continued_text_is_one_text_again() -> None:
    """Goal: overlap of the last words goes, and the new stream's first text keeps the old one's part."""
    join = Continued(prefix_of(Delta("text", 0, b"The quick brown fox")), 1, overlap=True)
    made = (
        join.feed([Delta("text", 0, b" brown ")])
        + join.feed([Delta("text", 0, b"fox jumps")])
        + join.finish()
    )
    assert b"".join(delta.data for delta in made) == b" jumps"
    assert {delta.part for delta in made} == {0}


def test_what_only_might_be_overlap_comes_before_the_next_part() -> None:
    join = Continued(prefix_of(Delta("text", 0, b"The quick brown fox")), 1, overlap=True)
    made = join.feed([Delta("text", 0, b"quick"), Delta("tool_call", 1, b"{}", "c", "n")]) + join.finish()
    assert [(d.kind, d.data, d.part) for d in made] == [("text", b"quick", 0), ("tool_call", b"{}", 2)]


def test_an_exact_continuation_is_left_alone() -> None:
    join = Continued(prefix_of(Delta("text", 0, b"ha ha ha ha ha ")), 1, overlap=False)
    assert join.feed([Delta("text", 0, b"ha ha ha ha!")])[0].data == b"ha ha ha ha!"


def test_after_a_part_that_is_no_text_a_text_is_its_own() -> None:
    join = Continued(
        prefix_of(Delta("text", 0, b"Let me look."), Delta("tool_call", 1, b"{", "c", "n")), 2, overlap=True
    )
    assert join.feed([Delta("text", 0, b"Let me look.")]) == [Delta("text", 2, b"Let me look.")]


def test_a_looked_up_response_passes_over_what_is_known_part_by_part() -> None:
    source = [
        Delta("reasoning", 0, b"think"),
        Delta("text", 1, b"Hello"),
        Delta("tool_call", 2, b'{"a"', "c", "n"),
        Delta("tool_call", 2, b":1}"),
    ]
    for known in range(len(source) + 1):
        join = LookedUp(prefix_of(*source[:known]))
        made = [delta for one in source for delta in join.feed([one])]
        assert made + join.finish() == source[known:], known


def test_another_looked_up_response_is_refused() -> None:
    join = LookedUp(prefix_of(Delta("text", 0, b"Hello")))
    with pytest.raises(InvalidRecord, match="conflict"):
        join.feed([Delta("text", 0, b"Help")])
    short = LookedUp(prefix_of(Delta("text", 0, b"Hello")))
    short.feed([Delta("text", 0, b"He")])
    with pytest.raises(InvalidRecord, match="conflict"):
        short.finish()


def test_parts_of_a_second_stream_follow_those_of_the_first() -> None:
    assert Numbered(3).feed([Delta("text", 0, b"a")])[0].part == 3


def test_a_message_is_composed_of_what_was_recorded() -> None:
    made = compose(
        [
            Delta("reasoning", 0, b"hm"),
            Delta("text", 1, b"Hi "),
            Delta("text", 1, b"you"),
            Delta("tool_call", 2, b'{"a":', "c1", "refund"),
            Delta("tool_call", 2, b"1}"),
            Delta("tool_call", 3, b'{"cut', None, "refund"),
        ]
    )
    parts = name_calls(made, "m")
    assert parts == name_calls(made, "m")
    assert [(p.type, p.text) for p in parts[:2]] == [("reasoning", "hm"), ("text", "Hi you")]
    assert parts[2].fields["arguments"] == '{"a":1}'
    assert parts[2].fields["call_id"] == "c1"
    assert parts[3].fields["call_id"].startswith("call_")
    assert [p.fields["arguments_valid"] for p in parts[2:]] == [True, False]


def test_a_transcript_knows_where_its_text_begins() -> None:
    transcript = Transcript(G)
    for offset, item in enumerate([begin(), batch(1, "a"), begin(2, "restart"), begin(3, "continue")]):
        transcript.take(item, 10 + offset, 0)
    assert transcript.progress is not None
    assert (transcript.progress.first_offset, transcript.progress.text_attempt) == (12, 2)
