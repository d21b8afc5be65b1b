"""The HTTP port over a real socket and a fake owner."""

from __future__ import annotations

import asyncio
import json
import socket
import time
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager

import aiohttp
import pytest
from prometheus_client.parser import text_string_to_metric_families
from yarl import URL

from api.fake_owner import FakeView
from refold.api import handlers, rulingstream
from refold.api.rulingstream import RulingStream
from refold.api.server import OwnerServer
from refold.api.view import (
    GenerationAnswer,
    HistoryAnswer,
    OwnerView,
    PartitionStatus,
    RulingLine,
    StandbyAnswer,
    WorkerHealth,
)
from refold.core.envelope import Envelope
from refold.core.evolve import evolve
from refold.core.session import initial
from refold.core.usage import UsageAdmitted, UsageRecorded, fold_usage
from refold.errors import ConfigError, StorageError, UnavailableError
from refold.telemetry.metrics import PrometheusMetrics
from refold.wire.codec import encode
from refold.wire.events import decode_event
from refold.wire.parts import generic, to_wire
from refold.wire.snapshot import encode_snapshot
from refold.wire.usage import encode_usage
from refold.wire.usageanswer import UsageAnswer

KEY = b"t/s"
Get = Callable[..., "AbstractAsyncContextManager[aiohttp.ClientResponse]"]


@asynccontextmanager
async def serving(view: OwnerView, **options: object) -> AsyncIterator[tuple[OwnerServer, Get]]:
    server = OwnerServer(view, metrics=lambda: b"refold_up 1\n", **options)  # type: ignore[arg-type]
    await server.start()
    async with aiohttp.ClientSession() as http:

        def get(path: str, **kwargs: object) -> AbstractAsyncContextManager[aiohttp.ClientResponse]:
            return http.get(URL(server.url + path, encoded=True), **kwargs)  # type: ignore[arg-type]

        try:
            yield server, get
        finally:
            await server.stop()


async def test_a_snapshot_is_served_as_committed_bytes_with_its_seq() -> None:
    """Goal: the body is the framed record itself, the seq travels in ETag and Refold-Seq, 304 on a match."""
    view = FakeView()
    view.snapshots[KEY] = (7, b"\x00\x00\x00\x00\x01framed")
    async with serving(view) as (_, get):
        async with get("/v1/sessions/t/s") as answer:
            assert answer.status == 200
            assert await answer.read() == b"\x00\x00\x00\x00\x01framed"
            assert answer.content_type == "application/avro"
            assert answer.headers["ETag"] == '"7"'
            assert answer.headers["Refold-Seq"] == "7"
        for header in ('"7"', 'W/"7"', '"3", "7"', "*"):
            async with get("/v1/sessions/t/s", headers={"If-None-Match": header}) as answer:
                assert (answer.status, await answer.read()) == (304, b"")
        async with get("/v1/sessions/t/s", headers={"If-None-Match": '"6"'}) as answer:
            assert answer.status == 200


LABELS = {"X-Served-By": "standby", "Refold-Position": "12", "Refold-Behind": "3", "Refold-Age": "0.250"}


@pytest.mark.parametrize("status", ["absent", "waiting", "restoring"])
async def test_a_standby_answers_who_asks_for_it_and_says_how_old_that_is(status: PartitionStatus) -> None:
    """S4: only with stale=ok, labelled, absence too; with a token of consistency as if there were none."""
    view = FakeView()
    view.statuses[view.partition_of(KEY)] = status
    view.copies[KEY] = StandbyAnswer(5, b"copied", 12, 3, 0.25)
    gone = next(b"t/%d" % n for n in range(99) if view.partition_of(b"t/%d" % n) == view.partition_of(KEY))
    view.copies[gone] = StandbyAnswer(0, None, 12, 3, 0.25)
    refused = 421 if status == "absent" else 503
    async with serving(view) as (_, get):
        async with get("/v1/sessions/t/s?stale=ok") as answer:
            assert (answer.status, await answer.read()) == (200, b"copied")
            assert {name: answer.headers[name] for name in LABELS} == LABELS
            assert (answer.headers["ETag"], answer.headers["Refold-Seq"]) == ('"5"', "5")
        async with get("/v1/sessions/t/s?stale=ok", headers={"If-None-Match": '"5"'}) as answer:
            assert (answer.status, answer.headers["X-Served-By"]) == (304, "standby")
        async with get(f"/v1/sessions/{gone.decode()}?stale=ok") as answer:
            assert (answer.status, (await answer.json(content_type=None))["code"]) == (404, "unknown_session")
            assert {name: answer.headers[name] for name in LABELS} == LABELS
        for query in ("", "?min_seq=5", "?stale=ok&min_seq=5", "/history?stale=ok"):
            async with get(f"/v1/sessions/t/s{query}") as answer:
                assert answer.status == refused, query
                assert "X-Served-By" not in answer.headers
        async with get(f"/v1/rulings/{view.partition_of(KEY)}/0?stale=ok") as answer:
            assert answer.status == refused
        async with get("/v1/sessions/t/s?stale=maybe") as answer:
            assert answer.status == 400


async def test_an_owner_answers_for_itself_whatever_would_do() -> None:
    view = FakeView()
    view.snapshots[KEY] = (7, b"owned")
    view.copies[KEY] = StandbyAnswer(5, b"copied", 12, 3, 0.25)
    async with serving(view) as (_, get):
        async with get("/v1/sessions/t/s?stale=ok") as answer:
            assert (await answer.read(), answer.headers["X-Served-By"]) == (b"owned", "active")
        async with get("/v1/sessions/t/s") as answer:
            assert "X-Served-By" not in answer.headers


async def test_without_a_copy_stale_reads_are_refused_like_others() -> None:
    view = FakeView()
    view.statuses[view.partition_of(KEY)] = "absent"
    async with serving(view) as (_, get), get("/v1/sessions/t/s?stale=ok") as answer:
        assert answer.status == 421


async def test_session_ids_with_any_character_reach_the_right_key() -> None:
    """Goal: slashes, dots, percent signs and other scripts in a session id are data, never path syntax."""
    view = FakeView()
    ids = {"a/b": "a%2Fb", "..": "%2E%2E", "50%": "50%25", "ключ ?#": "%D0%BA%D0%BB%D1%8E%D1%87%20%3F%23"}
    for session in ids:
        view.snapshots[f"t/{session}".encode()] = (1, session.encode())
    async with serving(view) as (_, get):
        for session, quoted in ids.items():
            async with get(f"/v1/sessions/t/{quoted}") as answer:
                assert (answer.status, await answer.read()) == (200, session.encode())


@pytest.mark.parametrize(
    ("path", "status", "code"),
    [
        ("/v1/sessions/t/none", 404, "unknown_session"),
        ("/v1/sessions/t/none/history", 404, "unknown_session"),
        ("/v1/sessions/t/s?min_seq=x", 400, "bad_request"),
        ("/v1/sessions/t/s?min_seq=-1", 400, "bad_request"),
        ("/v1/sessions/t/s?wait_ms=30001", 400, "bad_request"),
        ("/v1/sessions/t/s/history?limit=0", 400, "bad_request"),
        ("/v1/sessions/t/" + "x" * 600, 400, "bad_request"),
        ("/v1/rulings/0/%D9%A1", 400, "bad_request"),
        ("/v1/rulings/0/5", 504, "not_reached"),
        ("/v1/rulings/0/2", 404, "ruling_forgotten"),
        ("/v1/rulings/9/2", 421, "not_owner"),
        ("/v1/rulings/stream", 400, "bad_request"),
        ("/nothing", 404, "unknown_path"),
    ],
)
async def test_every_refusal_is_problem_json_with_a_code(path: str, status: int, code: str) -> None:
    """Goal: a client can tell refusals apart by code, and the detail says what to do."""
    view = FakeView()
    view.snapshots[KEY] = (1, b"x")
    view.frontiers[0] = 3
    async with serving(view) as (_, get), get(path) as answer:
        body = json.loads(await answer.read())
        assert (answer.status, body["code"], body["status"]) == (status, code, status)
        assert answer.content_type == "application/problem+json"
        assert body["detail"]


async def test_other_methods_and_bodies_are_refused() -> None:
    """Goal: the port only answers GET."""
    async with serving(FakeView()) as (server, _), aiohttp.ClientSession() as http:
        async with http.post(server.url + "/v1/sessions/t/s", data=b"x" * 10_000) as answer:
            assert answer.status == 405


@pytest.mark.parametrize("state", ["waiting", "restoring"])
async def test_503_with_retry_after_while_restoring(state: str) -> None:
    """Goal: an owner that cannot answer yet says so, and when to come back; 421 when it is not the owner."""
    view = FakeView()
    view.snapshots[KEY] = (1, b"x")
    view.statuses[view.partition_of(KEY)] = state  # type: ignore[assignment]
    async with serving(view) as (_, get):
        for path in (
            "/v1/sessions/t/s",
            "/v1/sessions/t/s/history",
            f"/v1/rulings/{view.partition_of(KEY)}/0",
        ):
            async with get(path) as answer:
                assert answer.status == 503
                assert int(answer.headers["Retry-After"]) >= 1
                assert json.loads(await answer.read())["retry_after_s"] == 0.05


async def test_min_seq_waits_for_the_commit_and_504_otherwise() -> None:
    """Goal: read-your-writes: the answer holds the seq asked for, or is a 504 that names the seq reached."""
    view = FakeView()
    view.snapshots[KEY] = (1, b"one")
    async with serving(view) as (_, get):
        async with get("/v1/sessions/t/s?min_seq=2&wait_ms=30") as answer:
            assert (answer.status, json.loads(await answer.read())["seq"]) == (504, 1)
        request = asyncio.ensure_future(get("/v1/sessions/t/s?min_seq=2&wait_ms=5000").__aenter__())
        await asyncio.sleep(0)
        view.snapshots[KEY] = (2, b"two")
        await view.changed()
        answer = await request
        assert (answer.status, await answer.read(), answer.headers["Refold-Seq"]) == (200, b"two", "2")


async def test_ownership_lost_while_waiting_is_a_421() -> None:
    """Goal: what was owned when the wait began is not served after a revocation."""
    view = FakeView()
    view.snapshots[KEY] = (1, b"one")
    async with serving(view) as (_, get):
        request = asyncio.ensure_future(get("/v1/sessions/t/s?min_seq=2&wait_ms=200").__aenter__())
        await asyncio.sleep(0.02)
        view.statuses[view.partition_of(KEY)] = "absent"
        answer = await request
        assert answer.status == 421


async def test_history_passes_the_index_on() -> None:
    view = FakeView()
    view.snapshots[KEY] = (3, b"x")
    view.histories[KEY] = HistoryAnswer("r.journal", 2, ((2, 40), (3, 55)), scan_from=56)
    async with serving(view) as (_, get), get("/v1/sessions/t/s/history?after=1&limit=2") as answer:
        body = await answer.read()
        assert json.loads(body) == {
            "topic": "r.journal",
            "partition": 2,
            "offsets": [[2, 40], [3, 55]],
            "scan_from": 56,
        }
        assert HistoryAnswer.from_bytes(body) == view.histories[KEY]
        assert answer.headers["Refold-Seq"] == "3"
        assert view.history_calls == [(KEY, 1, 2)]


async def test_usage_is_the_rows_of_the_partitions_that_are_live_and_their_sums() -> None:
    """Goal: one answer of all partitions here; what restores is named, not guessed; `*` sums the models."""
    view, t0 = FakeView(), 1_764_400_000_000
    for partition, model, tokens in ((0, "m", 5), (2, "m", 7), (2, "n", 11)):
        row = fold_usage(None, "t", "s", UsageRecorded(model, "ada lovelace", t0, input=tokens), t0)
        row = fold_usage(row, "t", "s", UsageAdmitted("x", model, "ada lovelace", 60_000), t0)
        view.usages.setdefault(("t", "ada lovelace"), {}).setdefault(partition, {})[model] = encode_usage(
            row, partition
        )
    async with serving(view) as (_, get):
        path = "/v1/usage/t/ada%20lovelace"
        async with get(f"{path}/m?at_ms={t0}") as answer:
            body = await answer.json()
        assert body["windows"]["minute"] == {
            "requests": 2, "input": 12, "output": 0, "cached": 0, "reasoning": 0,
        }  # fmt: skip
        assert (body["active"], body["records"], body["restoring"]) == (2, 2, [])
        assert {p: len(rows) for p, rows in body["partitions"].items()} == {"0": 1, "1": 0, "2": 1, "3": 0}
        view.statuses = {2: "restoring", 3: "absent"}
        async with get(f"{path}/*?at_ms={t0}&window=hour") as answer:
            text = await answer.read()
        read = UsageAnswer.from_bytes(text)
        assert (read.restoring, sorted(read.rows)) == ((2,), [0, 1])
        assert list(json.loads(text)["windows"]) == ["hour"]
        assert [row.totals for row in read.rows[0]] == [[1, 5, 0, 0, 0]]
        view.statuses = {}
        async with get(f"{path}/*?at_ms={t0 + 60_000}") as answer:
            body = await answer.json()
        assert (body["active"], body["windows"]["minute"]["input"], body["totals"]["input"]) == (0, 23, 23)
        async with get(f"{path}/m?window=week") as answer:
            assert answer.status == 400
        async with get(f"{path}/{'m' * 600}") as answer:
            assert answer.status == 400
    with pytest.raises(UnavailableError, match="compare the versions"):
        UsageAnswer.from_bytes(b"{}")


async def test_a_generation_can_be_waited_for() -> None:
    """Row, progress and place as JSON; bytes as base64; 404 before its begin."""
    view = FakeView()
    path = "/v1/generations/t/s/g1"
    async with serving(view) as (_, get):
        async with get(path) as answer:
            assert answer.status == 404
            assert (await answer.json(content_type=None))["code"] == "unknown_generation"
        async with get("/v1/generations/t/s/g%23other") as answer:
            assert answer.status == 400
        async with get(f"/v1/generations/t/s/{'g' * 2_000}") as answer:
            assert answer.status == 400
        request = asyncio.ensure_future(get(f"{path}?wait_ms=5000").__aenter__())
        await asyncio.sleep(0)
        progress = {"attempt": 1, "produced": 3, "chain": b"\x01"}
        view.generations[KEY, "g1"] = GenerationAnswer("r.batches", 2, {"state": "started"}, progress)
        await view.changed()
        answer = await request
        assert (answer.status, answer.headers["Cache-Control"]) == (200, "no-store")
        assert json.loads(await answer.read()) == {
            "row": {"state": "started"},
            "progress": {"attempt": 1, "produced": 3, "chain": {"base64": "AQ=="}},
            "topic": "r.batches",
            "partition": 2,
        }
        answer.close()


async def test_a_ruling_can_be_waited_for() -> None:
    view = FakeView()
    line = RulingLine(1, 8, "rejected", None, "expected_seq", "the session is at 3")
    async with serving(view) as (_, get):
        request = asyncio.ensure_future(get("/v1/rulings/1/8?wait_ms=5000").__aenter__())
        await asyncio.sleep(0)
        await view.rule("p", line)
        answer = await request
        assert RulingLine.from_bytes(await answer.read()) == line


async def test_the_stream_says_it_is_open_then_carries_only_its_producers_rulings() -> None:
    """Goal: after the first (blank) line every committed ruling of that producer comes, in order."""
    view = FakeView()
    async with serving(view) as (_, get), get("/v1/rulings/stream?producer=p-1") as answer:
        assert await answer.content.readline() == b"\n"
        await view.rule("other", RulingLine(0, 1, "accepted", 1))
        await view.rule("p-1", RulingLine(0, 2, "accepted", 2))
        await view.rule("p-1", RulingLine(0, 3, "duplicate", 2))
        lines = [await answer.content.readline() for _ in range(2)]
        assert json.loads(lines[0]) == {"p": 0, "o": 2, "s": "accepted", "q": 2, "c": None, "r": None}
        assert RulingLine.from_bytes(lines[1]) == RulingLine(0, 3, "duplicate", 2)


async def test_an_idle_stream_sends_heartbeats(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rulingstream, "STREAM_HEARTBEAT_S", 0.01)
    async with serving(FakeView()) as (_, get), get("/v1/rulings/stream?producer=p") as answer:
        assert [await answer.content.readline() for _ in range(3)] == [b"\n"] * 3


async def test_a_stream_that_is_not_read_is_closed_and_unsubscribed() -> None:
    """Goal: a slow reader costs at most its buffer; the fold never waits for it."""
    stream = RulingStream(buffer_bytes_max=100)
    stream.sink(b"x" * 60)
    assert not stream.ended
    stream.sink(b"x" * 60)
    assert stream.ended


async def test_streams_end_when_the_peer_goes_or_the_server_stops() -> None:
    view = FakeView()
    async with serving(view) as (server, get):
        async with get("/v1/rulings/stream?producer=p") as answer:
            await answer.content.readline()
            assert len(view.sinks["p"]) == 1
            await server.stop()
            assert await answer.content.read() in (b"", b"\n")
        assert view.sinks["p"] == []


async def test_a_stuck_peer_does_not_keep_its_connection(monkeypatch: pytest.MonkeyPatch) -> None:
    """Goal: a peer that stops reading is cut off after the write timeout; nothing waits for it after that."""
    monkeypatch.setattr(rulingstream, "STREAM_WRITE_TIMEOUT_S", 0.2)
    view = FakeView()
    async with serving(view) as (server, _):
        peer = socket.create_connection(("127.0.0.1", server.port))
        peer.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        peer.sendall(b"GET /v1/rulings/stream?producer=p HTTP/1.1\r\nHost: x\r\n\r\n")
        await asyncio.wait_for(view.subscribed.wait(), 60)
        before = len(server._runner.server.connections)  # type: ignore[union-attr]
        assert before == 1
        deadline = time.monotonic() + 60
        line = RulingLine(0, 1, "rejected", None, "session_closed", "x" * 60_000)
        while server._runner.server.connections and time.monotonic() < deadline:  # type: ignore[union-attr]
            await view.rule("p", line)
            await asyncio.sleep(0.01)
        assert not server._runner.server.connections  # type: ignore[union-attr]
        assert not any(view.sinks.values())
        peer.close()


async def test_streams_are_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(handlers, "STREAMS_MAX", 1)
    async with serving(FakeView()) as (_, get), get("/v1/rulings/stream?producer=a") as first:
        await first.content.readline()
        async with get("/v1/rulings/stream?producer=b") as second:
            assert (second.status, json.loads(await second.read())["code"]) == (429, "too_many_requests")


async def test_the_token_is_asked_for_everywhere_but_on_the_probes() -> None:
    view = FakeView()
    view.snapshots[KEY] = (1, b"x")
    async with serving(view, token="a" * 16) as (_, get):
        for path in ("/v1/sessions/t/s", "/metrics", "/v1/rulings/stream?producer=p", "/nothing"):
            for headers in ({}, {"Authorization": "Bearer wrong"}, {"Authorization": "a" * 16}):
                async with get(path, headers=headers) as answer:
                    assert (answer.status, answer.content_type) == (401, "application/problem+json")
        async with get("/v1/sessions/t/s", headers={"Authorization": "Bearer " + "a" * 16}) as answer:
            assert answer.status == 200
        async with get("/healthz/live") as answer:
            assert answer.status == 200


@pytest.mark.parametrize(
    "target",
    [
        "/healthz/../v1/sessions/t/s",
        "/healthz/%2E%2E/v1/sessions/t/s",
        "/healthz/live/../../metrics",
        "/healthz%2Flive",
        "//healthz/../metrics",
        "http://x/healthz/../metrics",
        "/healthz/\xed\xa0\x80/\xff",
        "/v1/sessions/%ED%A0%80/%FF%00",
        "/healthz/" + "x" * 9_000,
    ],
)
async def test_no_way_of_writing_the_path_goes_round_the_token(target: str) -> None:
    """Goal: whatever the request line says, only the three probes answer without a token; nothing crashes."""
    view = FakeView()
    view.snapshots[KEY] = (1, b"secret state")
    for token in ("a" * 16, None):
        async with serving(view, token=token) as (server, _):
            reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
            line = b"GET " + target.encode("latin-1") + b" HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"
            writer.write(line)
            answer = await asyncio.wait_for(reader.read(), 60)
            status = int(answer.split(b" ", 2)[1])
            assert status in ((400, 401, 404) if token else (400, 404)), answer
            assert b"secret state" not in answer
            assert b"refold_up" not in answer
            assert b"Traceback" not in answer
            writer.close()


async def test_requests_are_counted_by_route_and_status_class() -> None:
    """Goal: labels are patterns and classes; no path, tenant or session becomes a series."""
    view = FakeView()
    view.snapshots[KEY] = (1, b"x")
    metrics = PrometheusMetrics()
    async with serving(view, token="a" * 16, reports_to=metrics) as (_, get):
        known = {"headers": {"Authorization": "Bearer " + "a" * 16}}
        for path, options in (
            ("/v1/sessions/t/s", known),
            ("/v1/sessions/t/secret-name", known),
            ("/v1/sessions/t/s", {}),
            ("/private/secret-name", known),
            ("/healthz/live", {}),
        ):
            async with get(path, **options) as answer:
                await answer.read()
        async with get("/v1/rulings/stream?producer=p", **known) as stream:
            await stream.content.readline()
    found = {
        (sample.labels["route"], sample.labels["status"]): sample.value
        for family in text_string_to_metric_families(metrics.render().decode())
        for sample in family.samples
        if sample.name == "refold_http_requests_total"
    }
    stream_status = next(status for route, status in found if route == "/v1/rulings/stream")
    assert found == {
        ("/v1/sessions/{tenant}/{session}", "2xx"): 1,
        ("/v1/sessions/{tenant}/{session}", "4xx"): 2,
        ("unknown", "4xx"): 1,
        ("/healthz/live", "2xx"): 1,
        ("/v1/rulings/stream", stream_status): 1,
    }
    text = metrics.render().decode()
    assert "secret-name" not in text
    assert 'refold_http_request_seconds_count{route="/healthz/live"} 1.0' in text
    assert 'refold_http_request_seconds_count{route="/v1/rulings/stream"}' not in text


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.0.2.1", "worker.example"])
def test_no_port_beyond_loopback_without_a_token(host: str) -> None:
    with pytest.raises(ConfigError, match="BEARER_TOKEN"):
        OwnerServer(FakeView(), host=host)


async def test_a_taken_port_is_named() -> None:
    async with serving(FakeView()) as (server, _):
        other = OwnerServer(FakeView(), port=server.port)
        with pytest.raises(UnavailableError, match=str(server.port)):
            await other.start()


async def test_probes_differ() -> None:
    """Goal: ready follows the partitions, live does not; probes say why."""
    view = FakeView()
    view.healthy = WorkerHealth(startup=True, ready=False, live=True, detail={"restoring": 2})
    async with serving(view) as (_, get):
        for probe, status in (("startup", 200), ("ready", 503), ("live", 200)):
            async with get(f"/healthz/{probe}") as answer:
                body = json.loads(await answer.read())
                assert (answer.status, body["ok"], body["restoring"]) == (status, status == 200, 2)
        async with get("/metrics") as answer:
            assert (answer.status, await answer.read()) == (200, b"refold_up 1\n")


async def test_partitions_are_told_like_a_probe() -> None:
    """Goal: state, since when, progress, position and lag of each; numbers and words only, so no token."""
    async with serving(FakeView(), token="a" * 16) as (_, get), get("/healthz/partitions") as answer:
        assert answer.status == 200
        rows = json.loads(await answer.read())["partitions"]
    assert [(row["partition"], row["state"], row["lag"], row["behind"], row["age_s"]) for row in rows] == [
        (0, "live", 0, None, None),
        (1, "restoring", None, None, None),
        (2, "standby", None, 3, 0.4),
    ]
    words = {"partition", "state", "seconds", "progress", "position", "committed", "lag", "behind", "age_s"}
    words |= {"served"}
    assert set(rows[0]) == words


async def test_an_error_inside_is_internal_and_tells_nothing() -> None:
    """Goal: no traceback and no text of an exception leaves the process."""

    class Broken(FakeView):
        def snapshot(self, key: bytes) -> bytes | None:
            raise RuntimeError("secret words")

    view = Broken()
    view.snapshots[KEY] = (1, b"x")
    async with serving(view) as (_, get), get("/v1/sessions/t/s") as answer:
        body = await answer.text()
        assert answer.status == 500
        assert "secret" not in body
        assert json.loads(body)["code"] == "internal"


async def test_a_store_that_cannot_be_read_is_restoring_and_never_absent() -> None:
    """Goal: 503 and when to come back, no path of the disk; what cannot be read may be there."""

    class Rotten(FakeView):
        def seq_of(self, key: bytes) -> int:
            raise StorageError("/var/data/p00001 cannot be read")

    async with serving(Rotten()) as (_, get):
        for path in ("/v1/sessions/t/s", "/v1/sessions/t/s/history", "/v1/sessions/t/s?min_seq=3"):
            async with get(path) as answer:
                body = await answer.json(content_type=None)
                assert (answer.status, body["code"]) == (503, "restoring")
                assert answer.headers["Retry-After"] == "1"
                assert "/var/data" not in json.dumps(body)


async def test_json_is_the_public_part() -> None:
    """Goal: without Avro one reads the same fields; bytes are base64, the engine part is left out."""
    session = initial("t", "s")
    body = {"message_id": "m1", "role": "user", "content": [to_wire(generic("x", b"[1]"))]}
    env = Envelope("e1", "t", "s", "MessageAppended", payload=encode("refold.event.MessageAppended", body))
    evolve(session, 1, 1000, 2, 40, env, decode_event(env))
    view = FakeView()
    view.snapshots[KEY] = (1, encode_snapshot(session))
    async with serving(view) as (_, get):
        async with get("/v1/sessions/t/s", headers={"Accept": "application/json"}) as answer:
            assert (answer.status, answer.content_type) == (200, "application/json")
            found = json.loads(await answer.read())
    assert (found["session_id"], found["seq"], found["created_at_ms"]) == ("s", 1, 1000)
    assert "engine" not in found
    [message] = found["context"]["recent_messages"]
    assert message["message_id"] == "m1"
    assert "base64" in json.dumps(message["content"])
