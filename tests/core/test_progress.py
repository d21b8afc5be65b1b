"""G1 to G7 and G12: the rule over the batches topic; D10 to D15 of the public bug reports."""

from __future__ import annotations

from collections.abc import Sequence
from hashlib import sha256

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from refold.core.codes import REJECT_CODES
from refold.core.limits import ACK_CLIENT_BYTES_MAX, ACK_CLIENTS_MAX, ID_BYTES_MAX, USAGE_MAX
from refold.core.progress import (
    CHAIN_BYTES,
    Ack,
    Applied,
    Batch,
    Delta,
    Ignored,
    Item,
    Marker,
    Progress,
    Refused,
    TokenUsage,
    Verdict,
    advance,
    next_chain,
    text_bytes,
)
from refold.wire.batches import decode_progress, encode_progress

COUNTERS = {"repeats", "fenced", "late", "after_finish", "finishes"}


def begin(generation: str = "g", attempt: int = 1, mode: str = "restart", **fields: object) -> Marker:
    return Marker(generation, "begin", attempt, mode, **fields)  # type: ignore[arg-type]


def tok(
    seq: int, text: str | bytes = "x", attempt: int = 1, generation: str = "g", **fields: object
) -> Batch:
    data = text.encode() if isinstance(text, str) else text
    deltas = (Delta("text", 0, data),) if data else ()
    return Batch(generation, attempt, seq, deltas, **fields)  # type: ignore[arg-type]


def run(*items: Item, start: Progress | None = None) -> tuple[Progress | None, list[str]]:
    """The progress after the items, and each verdict as one word."""
    progress = start
    words = []
    for offset, item in enumerate(items):
        progress, verdict = advance(progress, item, offset, 1_000 + offset)
        words.append(word(verdict))
    return progress, words


def word(verdict: Verdict) -> str:
    if isinstance(verdict, Refused):
        return verdict.code
    return verdict.why if isinstance(verdict, Ignored) else "applied"


def after(*items: Item) -> Progress:
    progress, _ = run(*items)
    assert progress is not None
    return progress


def content(progress: Progress, *, counters: bool = False) -> dict[str, object]:
    """Everything that says what there is: without counters, and without where and when it was read."""
    places = {"last_offset", "last_ms", "first_offset"}
    left_out = places if counters else places | COUNTERS
    return {
        name: getattr(progress, name) if name != "acks" else {c: seq for c, (seq, _) in progress.acks.items()}
        for name in Progress.__slots__
        if name not in left_out
    }


# --- G1 ------------------------------------------------------------------------------------------------


def test_g1_nothing_counts_before_the_begin() -> None:
    progress, words = run(
        tok(1), Ack("g", 1, "c", 0), Marker("g", "stop", 1), Marker("g", "end", 1, state="failed")
    )
    assert progress is None
    assert words == ["unknown_generation", "unknown_generation", "late", "late"]


def test_g1_a_begin_says_who_generates() -> None:
    progress = after(begin(holder="h", lease_ms=500, generator="answer", message_id="m", time_ms=77))
    assert (progress.holder, progress.lease_ms, progress.generator) == ("h", 500, "answer")
    assert (progress.message_id, progress.started_ms, progress.attempt, progress.text_attempt) == (
        "m",
        77,
        1,
        1,
    )
    assert (progress.produced, progress.length, progress.chain, progress.ended) == (0, 0, b"", "")
    progress, _ = advance(progress, tok(0, ""), 7, 70)
    progress, _ = advance(progress, begin(attempt=2, mode="continue"), 8, 80)
    assert progress is not None
    assert (progress.first_offset, progress.last_offset, progress.last_ms) == (0, 8, 80)


# --- G2 ------------------------------------------------------------------------------------------------


def test_g2_restart_forgets_the_text_and_keeps_the_usage() -> None:
    progress = after(
        begin(time_ms=5),
        tok(1, "lost", usage=TokenUsage(10, 4), finish="stop", provider_response_id="r1"),
        Ack("g", 1, "c", 1),
        begin(attempt=2, holder="h2"),
        tok(1, "new", attempt=2, usage=TokenUsage(10, 1)),
    )
    assert (progress.attempt, progress.text_attempt, progress.produced, progress.length) == (2, 2, 1, 3)
    assert (progress.finish, progress.provider_response_id, progress.holder) == (None, None, "h2")
    assert progress.chain == next_chain(b"", tok(1, "new").deltas)
    assert progress.acks == {"c": (0, 1_002)}, "clients stay, with nothing acknowledged"
    assert progress.usage_total == TokenUsage(20, 5), "lost tokens were paid for"
    assert (progress.first_offset, progress.started_ms) == (3, 5)


def test_g2_continue_keeps_everything_but_moves_the_usage() -> None:
    progress = after(
        begin(),
        tok(1, "ab", usage=TokenUsage(10, 2), provider_response_id="r1"),
        Ack("g", 1, "c", 1),
        begin(attempt=2, mode="continue"),
        tok(2, "cd", attempt=2, usage=TokenUsage(12, 3)),
    )
    assert (progress.attempt, progress.text_attempt, progress.produced, progress.length) == (2, 1, 2, 4)
    assert (progress.acks["c"][0], progress.provider_response_id, progress.first_offset) == (1, "r1", 0)
    assert (progress.usage, progress.usage_before) == (TokenUsage(12, 3), TokenUsage(10, 2))
    assert progress.chain == next_chain(next_chain(b"", tok(1, "ab").deltas), tok(2, "cd").deltas)


def test_g2_an_attempt_that_is_not_newer_is_a_repeat() -> None:
    progress, words = run(begin(), tok(1), begin(attempt=3), begin(attempt=3), begin(attempt=2), begin())
    assert words == ["applied"] * 3 + ["repeat"] * 3
    assert progress is not None
    assert (progress.attempt, progress.repeats) == (3, 3)


# --- G3 ------------------------------------------------------------------------------------------------


def test_g3_d10_a_producer_that_connects_again_changes_nothing_twice() -> None:
    """D10: 1 to 5, again 1 to 5, then 6: the text once, produced 6."""
    items = [begin(), *[tok(n, f"{n}") for n in range(1, 6)]]
    again = [*items, *items[1:], tok(6, "6")]
    progress, words = run(*again)
    straight = after(*items, tok(6, "6"))
    assert progress is not None
    assert content(progress) == content(straight)
    assert (progress.produced, progress.length, progress.repeats) == (6, 6, 5)
    assert words.count("repeat") == 5


def test_g3_fenced_ungranted_gap_and_late() -> None:
    progress, words = run(
        begin(),
        begin(attempt=2),
        tok(1, attempt=1),
        tok(1, attempt=3),
        tok(2, attempt=2),
        tok(1, attempt=2),
        Marker("g", "end", 2, state="finished"),
        tok(2, attempt=2),
        tok(1, attempt=1),
        tok(1, attempt=9),
    )
    expected = ["fenced", "batch_ungranted", "batch_gap", "applied", "applied", "late", "late", "late"]
    assert words[2:] == expected
    assert progress is not None
    assert (progress.fenced, progress.late, progress.produced, progress.ended) == (1, 3, 1, "finished")


def test_g3_d19_the_first_end_stays() -> None:
    """D19: whatever comes after the end, begins included, is late and counted."""
    ends = [Marker("g", "end", 1, state="finished"), Marker("g", "end", 1, state="failed")]
    progress, words = run(begin(), *ends, Marker("g", "stop", 1), begin(attempt=2))
    assert words == ["applied", "applied", "late", "late", "late"]
    assert progress is not None
    assert (progress.ended, progress.late, progress.attempt, progress.stopping) == ("finished", 3, 1, False)


def test_g3_a_heartbeat_carries_nothing() -> None:
    progress, words = run(
        begin(),
        tok(0, "", provider_response_id="r1"),
        tok(0, "x"),
        tok(0, "", finish="stop"),
        tok(0, "", usage=TokenUsage(1)),
        tok(0, "", attempt=2),
    )
    assert words[1:] == ["applied", "bad_value", "bad_value", "bad_value", "batch_ungranted"]
    assert progress is not None
    assert (progress.produced, progress.provider_response_id, progress.last_offset) == (0, "r1", 1)


def test_a_stop_is_kept_until_the_end() -> None:
    progress, words = run(begin(), Marker("g", "stop", 1), Marker("g", "stop", 1), tok(1), begin(attempt=2))
    assert words == ["applied", "applied", "repeat", "applied", "applied"]
    assert progress is not None
    assert progress.stopping, "the next attempt has to end it too"


# --- G4, G5 --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("batches", "finishes", "after_finish", "output"),
    [
        pytest.param([tok(1, finish="stop"), tok(2, "", finish="stop")], 1, 0, 0, id="two end markers"),
        pytest.param([tok(1, finish="stop"), tok(2, "y")], 0, 1, 0, id="text after the end marker"),
        pytest.param([tok(1, finish="stop"), tok(2, "", usage=TokenUsage(3, 7))], 0, 0, 7, id="usage last"),
        pytest.param([tok(1, finish="stop"), tok(2, "y", finish="length")], 1, 1, 0, id="another reason"),
        pytest.param([tok(1, finish=""), tok(2, "y", finish="stop")], 0, 0, 0, id="an empty one is none"),
    ],
)
def test_g4_d13_one_finish(batches: list[Batch], finishes: int, after_finish: int, output: int) -> None:
    """D13: one finish; text after it is kept and counted; usage of the last chunk is recorded."""
    progress = after(begin(), *batches)
    assert (progress.finish, progress.finishes, progress.after_finish) == ("stop", finishes, after_finish)
    assert (progress.usage.output, progress.produced) == (output, 2)
    assert progress.length == text_bytes([d for b in batches for d in b.deltas])


def test_g5_d12_running_usage_counts_once() -> None:
    """D12: fifty batches with a running total: the last; with deltas, said to be such: the sum."""
    totals = [tok(n, usage=TokenUsage(10, n)) for n in range(1, 51)]
    assert after(begin(), *totals).usage == TokenUsage(10, 50)
    deltas = [tok(n, usage=TokenUsage(0, 1), usage_mode="delta") for n in range(1, 51)]
    assert after(begin(), *deltas, *deltas).usage == TokenUsage(0, 50), "a repeat adds nothing"


def test_g5_usage_that_cannot_be_is_refused_and_sums_stay_bounded() -> None:
    wrong = [TokenUsage(-1), TokenUsage(0, USAGE_MAX + 1), TokenUsage(2**62, 0, 0, 0)]
    for usage in wrong:
        assert run(begin(), tok(1, usage=usage))[1][1] == "bad_value"
    assert run(begin(), tok(1, usage=TokenUsage(1), usage_mode="guess"))[1][1] == "bad_value"
    big = [tok(n, usage=TokenUsage(USAGE_MAX), usage_mode="delta") for n in range(1, 4)]
    progress = after(begin(), *big, begin(attempt=2), tok(1, attempt=2, usage=TokenUsage(USAGE_MAX)))
    assert progress.usage_total.input == USAGE_MAX
    assert decode_progress(encode_progress("g", progress)) == progress


# --- G6 ------------------------------------------------------------------------------------------------


def test_g6_d11_an_ack_never_passes_what_was_produced() -> None:
    """D11: four batches, an ack of 7, four more: acknowledged is 4, so 5 to 8 are still to be delivered."""
    first = [begin(), *[tok(n) for n in range(1, 5)], Ack("g", 1, "c", 7)]
    progress = after(*first, *[tok(n) for n in range(5, 9)])
    assert (progress.produced, progress.acks["c"][0]) == (8, 4)


def test_g6_acks_are_monotone_and_no_news_is_understood() -> None:
    items = [begin(), *[tok(n) for n in range(1, 5)]]
    seqs = []
    progress, _ = run(*items)
    for offset, seq in enumerate([0, 3, 1, -5, 4, 0]):
        progress, verdict = advance(progress, Ack("g", 1, "c", seq), offset, 50 + offset)
        assert isinstance(verdict, Applied)
        assert progress is not None
        seqs.append(progress.acks["c"])
    assert seqs == [(0, 50), (3, 51), (3, 52), (3, 53), (4, 54), (4, 55)]


def test_g6_acks_of_a_text_that_is_gone_are_stale_and_those_of_the_future_too() -> None:
    _, words = run(
        begin(), tok(1), begin(attempt=2), Ack("g", 1, "c", 1), Ack("g", 3, "c", 1), Ack("g", 2, "c", 0)
    )
    assert words[3:] == ["stale", "stale", "applied"]
    _, words = run(begin(), tok(1), begin(attempt=2, mode="continue"), Ack("g", 1, "c", 1))
    assert words[3] == "applied", "the text goes on, so what was seen of it counts"


def test_g6_the_last_frames_are_acknowledged_after_the_end() -> None:
    progress = after(begin(), tok(1), Marker("g", "end", 1, state="finished"), Ack("g", 1, "c", 1))
    assert progress.acks["c"][0] == 1


def test_g6_the_client_not_heard_of_for_longest_goes() -> None:
    acks = [Ack("g", 1, f"c{n}", 0) for n in range(ACK_CLIENTS_MAX)]
    progress = after(begin(), *acks, Ack("g", 1, "c0", 0), Ack("g", 1, "new", 0))
    assert len(progress.acks) == ACK_CLIENTS_MAX
    assert "c1" not in progress.acks
    assert list(progress.acks)[-2:] == ["c0", "new"]
    assert decode_progress(encode_progress("g", progress)) == progress, "the order survives"


@pytest.mark.parametrize(
    "client", ["", "c" * (ACK_CLIENT_BYTES_MAX + 1), "é" * (ACK_CLIENT_BYTES_MAX // 2 + 1)]
)
def test_g6_a_client_has_a_short_name(client: str) -> None:
    assert run(begin(), Ack("g", 1, client, 0))[1][1] == "bad_id"


# --- G7 ------------------------------------------------------------------------------------------------

FAMILY = "가\U0001f468\u200d\U0001f469\u200d\U0001f467é"


def test_g7_d14_a_character_may_be_cut_anywhere() -> None:
    """D14: a Korean syllable and a joined family, cut after every byte: the pieces are the text."""
    data = FAMILY.encode()
    for cut in range(1, len(data)):
        pieces = (data[:cut], data[cut:])
        progress = after(begin(), tok(1, pieces[0]), tok(2, pieces[1]))
        assert progress.length == len(data)
        assert b"".join(pieces).decode() == FAMILY


def test_g7_length_counts_text_only_and_the_chain_counts_everything() -> None:
    deltas = (
        Delta("text", 0, "né".encode()),
        Delta("reasoning", 1, b"because"),
        Delta("tool_call", 2, b'{"a"', "c1", "look"),
    )
    progress = after(begin(), Batch("g", 1, 1, deltas))
    assert progress.length == 3
    canonical = (
        b"text\x000\x003\x00n\xc3\xa9\x00\x00"
        b"reasoning\x001\x007\x00because\x00\x00"
        b'tool_call\x002\x004\x00{"a"c1\x00look\x00'
    )
    assert progress.chain == sha256(b"" + canonical).digest()[:CHAIN_BYTES]
    again = after(begin(), Batch("g", 1, 1, deltas), Batch("g", 1, 2, deltas))
    assert again.chain == sha256(progress.chain + canonical).digest()[:CHAIN_BYTES]


@given(st.lists(st.lists(st.binary(max_size=4), max_size=3), max_size=4), st.data())
def test_g7_other_pieces_have_another_chain(batches: list[list[bytes]], data: st.DataObject) -> None:
    """Moving one byte over a border between batches, or dropping a piece, is seen."""

    def chain(of: Sequence[Sequence[bytes]]) -> bytes:
        digest = b""
        for pieces in of:
            digest = next_chain(digest, [Delta("text", 0, piece) for piece in pieces])
        return digest

    at = data.draw(st.integers(0, len(batches)))
    longer = [*batches[:at], [b"x"], *batches[at:]]
    assert chain(batches) == chain(batches)
    assert chain(longer) != chain(batches)
    split = [*batches[:at], [b"x", b"y"], *batches[at:]]
    joined = [*batches[:at], [b"xy"], *batches[at:]]
    assert chain(split) != chain(joined)


# --- G12 and bounds ------------------------------------------------------------------------------------


def test_g12_forget_drops_everything_and_a_begin_after_it_is_another_generation() -> None:
    old = [
        begin(),
        tok(1, "old", usage=TokenUsage(5)),
        begin(attempt=2),
        Marker("g", "end", 2, state="failed"),
    ]
    progress, words = run(*old, Marker("g", "forget", 2))
    assert progress is None
    assert words[-1] == "applied"
    assert word(advance(None, Marker("g", "forget", 2), 0, 0)[1]) == "late"
    progress, words = run(*old, Marker("g", "forget", 2), tok(1), begin(time_ms=9), tok(1, "new"))
    assert words[5:] == ["unknown_generation", "applied", "applied"]
    fresh = after(begin(time_ms=9), tok(1, "new"))
    assert progress is not None
    assert content(progress, counters=True) == content(fresh, counters=True)


LONG = "n" * (ID_BYTES_MAX + 1)


@pytest.mark.parametrize(
    ("item", "code"),
    [
        (begin(attempt=0), "bad_value"),
        (begin(attempt=2, mode="resume"), "bad_value"),
        (begin(attempt=2, holder=LONG), "bad_id"),
        (begin(attempt=2, generator=LONG), "bad_id"),
        (begin(attempt=2, message_id=LONG), "bad_id"),
        (Marker("g", "end", 1, state="done"), "bad_value"),
        (Marker("g", "pause", 1), "bad_value"),
        (tok(1, provider_response_id=LONG), "bad_id"),
    ],
)
def test_what_is_refused_changes_nothing(item: Item, code: str) -> None:
    progress = after(begin(time_ms=1))
    before = progress.copy()
    same, verdict = advance(progress, item, 9, 9)
    assert same is progress
    assert word(verdict) == code
    assert progress == before


def test_names_may_be_as_long_as_the_limit() -> None:
    full = "n" * ID_BYTES_MAX
    items = [begin(holder=full, generator=full, message_id=full), tok(1, provider_response_id=full)]
    assert run(*items, Ack("g", 1, "c" * ACK_CLIENT_BYTES_MAX, 1))[1] == ["applied"] * 3


def test_a_copy_does_not_share_acks() -> None:
    progress = after(begin(), tok(1), Ack("g", 1, "c", 1))
    other = progress.copy()
    assert other == progress
    advance(other, Ack("g", 1, "d", 1), 9, 9)
    assert list(progress.acks) == ["c"]
    assert other != progress
    assert repr(progress) == "Progress(1/1 open)"
    assert [repr(i) for i in (tok(1, "secret"), Ack("g", 1, "c", 2), begin())] == [
        "Batch('g' 1/1)",
        "Ack('g' 1/2 by 'c')",
        "Marker('g' begin 1 restart )",
    ]


# --- properties ----------------------------------------------------------------------------------------

INTS = st.integers(-(2**31), 2**31 - 1)
NUMBERS = st.integers(-(2**63), 2**63 - 1) | st.integers(-1, 4)
WORDS = st.sampled_from(["", "g", "text", "stop", "total", "delta", LONG, "가" * 90])


@st.composite
def anything(draw: st.DrawFn) -> Item:
    """Any value the wire can hold, near what may count and far from it."""
    kind = draw(st.integers(0, 2))
    attempt = draw(st.integers(0, 3) | INTS)
    if kind == 0:
        pieces = st.tuples(WORDS, INTS, st.binary(max_size=5), st.none() | WORDS, st.none() | WORDS)
        usage = st.builds(TokenUsage, *[NUMBERS] * 4)
        return Batch(
            "g",
            attempt,
            draw(st.integers(0, 3) | NUMBERS),
            tuple(Delta(*piece) for piece in draw(st.lists(pieces, max_size=2))),
            draw(st.none() | WORDS),
            draw(st.none() | usage),
            draw(WORDS),
            draw(st.none() | WORDS),
        )
    if kind == 1:
        return Ack("g", attempt, draw(st.text(max_size=3) | WORDS), draw(NUMBERS))
    return Marker(
        "g",
        draw(st.sampled_from(["begin", "begin", "stop", "end", "forget", ""])),
        attempt,
        draw(st.sampled_from(["restart", "continue", ""])),
        draw(WORDS),
        draw(NUMBERS),
        draw(st.sampled_from(["finished", "failed", "stopped", ""])),
        draw(NUMBERS),
        draw(NUMBERS),
        draw(st.none() | WORDS),
        draw(WORDS),
        draw(NUMBERS),
    )


@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.lists(anything(), max_size=30))
def test_advance_is_total_and_bounded(items: list[Item]) -> None:
    """Whatever comes: no exception, a verdict of the closed lists, never back, a record of a known size."""
    progress: Progress | None = None
    for offset, item in enumerate(items):
        before = None if progress is None else progress.copy()
        progress, verdict = advance(progress, item, offset, offset)
        if isinstance(verdict, Refused):
            assert verdict.code in REJECT_CODES
            assert (progress is None and before is None) or progress == before
        if isinstance(verdict, Ignored) and before is not None and progress is not None:
            assert content(progress) == content(before)
        if progress is None:
            continue
        value = encode_progress("g", progress)
        assert len(value) < 6_000 + 4 * ID_BYTES_MAX
        assert decode_progress(value) == progress
        assert all(0 <= seq <= progress.produced for seq, _ in progress.acks.values())
        if before is not None:
            assert progress.attempt >= before.attempt
            assert not before.ended or progress.ended == before.ended


@st.composite
def recordings(draw: st.DrawFn, generation: str) -> list[Item]:
    """What one generation's producer, worker and clients write, in their order, with everything repeated now
    and then: batches of the present and of former attempts, acks, heartbeats."""
    attempt, seq = 1, 0
    items: list[Item] = [begin(generation)]
    sent: list[Item] = []
    for _ in range(draw(st.integers(0, 14))):
        kind = draw(st.integers(0, 9))
        if kind == 0:
            attempt += 1
            mode = draw(st.sampled_from(["restart", "continue"]))
            seq = 0 if mode == "restart" else seq
            items.append(begin(generation, attempt, mode))
        elif kind == 1:
            items.append(
                Ack(generation, attempt, draw(st.sampled_from(["c", "d"])), draw(st.integers(0, seq)))
            )
        elif kind == 2 and sent:
            # A repeat of anything sent so far, once more and in its own order.
            items += sent[draw(st.integers(0, len(sent) - 1)) :]
        else:
            seq += 1
            usage = draw(st.none() | st.builds(TokenUsage, st.integers(0, 9), st.integers(0, 9)))
            text = draw(st.sampled_from(["a", FAMILY, "", "bc"]))
            batch = tok(seq, text, attempt, generation, usage=usage, usage_mode="delta")
            sent.append(batch)
            items.append(batch)
    if draw(st.booleans()):
        items.append(Marker(generation, "end", attempt, state="finished"))
    return items


def fold(items: Sequence[Item]) -> dict[str, Progress]:
    state: dict[str, Progress] = {}
    for offset, item in enumerate(items):
        progress, _ = advance(state.get(item.generation), item, offset, offset)
        if progress is not None:
            state[item.generation] = progress
    return state


@settings(max_examples=200, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(recordings("g1"), recordings("g2"), st.data())
def test_d15_any_interleaving_of_two_generations_gives_the_same_progress(
    first: list[Item], second: list[Item], data: st.DataObject
) -> None:
    """D15: two at once on one topic: each has its own text, seq and acks, however they are mixed."""
    mixed: list[Item] = []
    one, two = list(first), list(second)
    while one or two:
        source = one if two == [] or (one and data.draw(st.booleans())) else two
        mixed.append(source.pop(0))
    state = fold(mixed)
    for generation, items in (("g1", first), ("g2", second)):
        alone = fold(items)[generation]
        assert content(state[generation], counters=True) == content(alone, counters=True)


@settings(max_examples=200, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(recordings("g"), st.data())
def test_g3_any_redelivery_gives_the_same_progress(items: list[Item], data: st.DataObject) -> None:
    """Everything a producer or client sent may come again, any number of times, from any point, while the
    worker's markers stand once: only counters differ."""
    straight = fold(items)["g"]
    again: list[Item] = []
    for at, item in enumerate(items):
        again.append(item)
        if data.draw(st.integers(0, 3)) == 0:
            start = data.draw(st.integers(0, at))
            # A producer repeats within its own attempt; the order is its own.
            again += [i for i in items[start : at + 1] if not isinstance(i, Marker)]
    repeated = fold(again)["g"]
    assert content(repeated) == content(straight)
