"""Part f: a worker is killed, another one takes over: with a copy of its own (a standby) and without.

*Detection*, from the death to the other's assignment, is the group's session timeout and measured apart;
*live* is from that assignment to the last of the dead worker's partitions live. ``open transaction``: it died
with one open, which holds offsets and changelogs until it is fenced (rule D).
"""

from __future__ import annotations

import json
import random
import sys
import time
import urllib.request
from typing import Any

from bench import events
from bench.harness import Stack, load, wait_until
from bench.recovery.worker import Watched, has
from refold.core.slots import SlotMap

SESSION_TIMEOUT_MS = 6_000
STANDBY = {"REFOLD_WORKER__STANDBY_REPLICAS": "1"}


def partitions_of(worker: Watched) -> list[dict[str, Any]]:
    url = worker.lines("worker_started")[0]["url"]
    with urllib.request.urlopen(f"{url}/healthz/partitions", timeout=5) as answer:
        rows: list[dict[str, Any]] = json.load(answer)["partitions"]
    return rows


def owned(worker: Watched) -> list[int]:
    return [row["partition"] for row in partitions_of(worker) if row["state"] == "live"]


def copied(worker: Watched, partitions: list[int]) -> bool:
    fresh = {
        row["partition"]
        for row in partitions_of(worker)
        if row["state"] == "standby" and row.get("behind") == 0 and row.get("age_s") is not None
    }
    return fresh >= set(partitions)


def run_one(stack: Stack, number: int, *, standby: bool, open_transaction: bool) -> dict[str, Any]:
    """Two workers, one death. Every run has instances, and so disks, of its own."""
    point = stack.directory / f"{stack.prefix}-{number}.point"
    common = {
        "REFOLD_WORKER__SESSION_TIMEOUT_MS": str(SESSION_TIMEOUT_MS),
        **(STANDBY if standby else {}),
    }
    dies = Watched(stack, f"a{number}", "dies", **common, REFOLD_POINT_FILE=str(point))
    dies.wait_live(range(stack.partitions))
    stays = Watched(stack, f"b{number}", "stays", **common)
    half = stack.partitions // 2

    def shared() -> bool:
        return (
            dies.alive()
            and stays.alive()
            and bool(stays.lines("worker_started"))
            and len(owned(stays)) == half
        )

    wait_until(shared, "a share of the partitions for each")
    mine = owned(dies)
    if standby:
        wait_until(lambda: stays.alive() and copied(stays, mine), "the standby's copies")
    seen = len(stays.lines("partitions_assigned"))
    if open_transaction:
        point.write_text("after_produce:kill")
        slots = SlotMap(stack.partitions)
        chance = random.Random(number)
        words = (events.message(slots, "death", f"{number}-{i}", i, 1, chance) for i in range(50))
        load(stack.bootstrap, f"{stack.prefix}.inbox", (one for one in words if one[0] in mine))
        wait_until(lambda: dies.process.poll() is not None, "its death")
        died = time.time()
    else:
        died = time.time()
        dies.stop(kill=True)

    def taken() -> list[dict[str, Any]]:
        return [row for row in stays.lines("partitions_assigned")[seen:] if row["partitions"]]

    def live() -> set[int]:
        rows = stays.lines("partition_live")
        return {row["partition"] for row in rows if row["at"] > died and row["partition"] in mine}

    wait_until(lambda: stays.alive() and live() >= set(mine), "the takeover")
    assigned = taken()[0]["at"]
    rows = [row for row in stays.lines("partition_live") if row["at"] > died and row["partition"] in mine]
    stays.stop()
    row = {
        "detection_seconds": round(assigned - died, 3),
        "live_seconds": round(max(row["at"] for row in rows) - assigned, 3),
        "records": sum(row["records"] for row in rows),
    }
    print(f"failover standby={standby} open transaction={open_transaction}: {row}", file=sys.stderr)
    return row


def run(stack: Stack, *, count: int, sessions: int, full: bool = True) -> dict[str, Any]:
    stack.create_topics()
    load(stack.bootstrap, f"{stack.prefix}.inbox", events.messages(count, sessions, stack.partitions))
    worker = Watched(stack, "folds", "folding")
    worker.folded(stack)
    worker.stop()
    found: dict[str, Any] = {"session_timeout_ms": SESSION_TIMEOUT_MS, "events": count}
    number = 0
    for standby in (True, False) if full else (True,):
        name = "standby" if standby else "cold"
        if standby and not has("standby_replicas"):
            found[name] = "standby_replicas not available"
            continue
        found[name] = {}
        for open_transaction in (False, True) if full else (True,):
            number += 1
            said = "open_transaction" if open_transaction else "plain"
            found[name][said] = run_one(stack, number, standby=standby, open_transaction=open_transaction)
    return found
