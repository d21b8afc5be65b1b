"""Every scenario of ``refold verify faults``: what is injected, what is expected."""

from __future__ import annotations

from typing import Final

from refold.ops.faults import clocks, deaths, disks, leaders, network, standbys, transactions
from refold.ops.faults.scenario import Scenario

SCENARIOS: Final[tuple[Scenario, ...]] = (
    Scenario(
        "network-cut",
        "one worker cut off from the broker until others have taken over and committed; what was under way"
        " arrives when it heals",
        "its late commit is refused, it comes back as a member",
        network.cut,
        own_brokers=True,
    ),
    Scenario(
        "network-answers-lost",
        "requests of one worker arrive, answers do not, for 8 s",
        "a commit of unknown outcome is neither repeated nor lost",
        network.answers_lost,
        own_brokers=True,
    ),
    Scenario(
        "network-delay",
        "every packet of one worker takes 120 ms longer, each way, for 10 s",
        "slower, and nothing else",
        network.delay,
        own_brokers=True,
    ),
    Scenario(
        "disk-full-worker",
        "no byte left under one worker's RocksDB; it is killed and starts on the full disk",
        "it says so and ends with exit code 74; with room again it restores",
        disks.under_worker,
        unavailable=disks.unavailable,
    ),
    Scenario(
        "disk-full-broker",
        "no byte left under the only broker's log, which stops it; then there is room and it is started",
        "workers wait or are restarted; nothing that was acknowledged is lost",
        disks.under_broker,
        own_brokers=True,
        unavailable=disks.unavailable,
    ),
    Scenario(
        "clock-jump",
        "the wall clock of one worker jumps 400 days ahead, then 3 hours behind: at its start and at work",
        "its local copy is of an impossible time and rebuilt (rule Z); order and content do not depend on it",
        clocks.jump,
    ),
    Scenario(
        "slow-consumer",
        "one worker runs 2 % of the time for 12 s",
        "it lags and keeps its partitions; the others' go on",
        transactions.slow,
    ),
    Scenario(
        "hung-transaction",
        "an owner is stopped (SIGSTOP) inside of a commit whose timeout is two minutes",
        "others fence it and go on within seconds (rule D); woken, it finds itself fenced",
        transactions.hung,
    ),
    Scenario(
        "state-leader-at-marker",
        "three nodes; the leader of state partitions is killed after a commit was decided, before its marker",
        "its successor gets the marker; takeovers wait for it (rule T)",
        leaders.at_marker,
        own_brokers=True,
    ),
    Scenario(
        "kill-in-restore",
        "a worker without a disk is killed at each step of a takeover, and in the middle of a slow restore",
        "the next start restores all the same",
        deaths.in_restore,
    ),
    Scenario(
        "kill-in-checkpoint",
        "a worker is killed at each step of publishing a checkpoint; then all disks are deleted",
        "half-published checkpoints are never used; restores begin with whole ones",
        deaths.in_checkpoint,
    ),
    Scenario(
        "kill-in-drain",
        "SIGTERM while a commit is on its way, SIGKILL before the drain ends",
        "as any other kill",
        deaths.in_drain,
    ),
    Scenario(
        "standby-expired",
        "a worker that keeps copies stands still for longer than tombstones stay; then the other dies",
        "its copies are begun again before anything more is applied (rule Z), and serve after the death",
        standbys.stopped,
    ),
    Scenario(
        "rolling-restart",
        "every worker is stopped in order (SIGTERM) and started, one after the other, twice",
        "static members keep their partitions: no rebalance, short pauses",
        deaths.rolling,
    ),
)

BY_NAME: Final = {scenario.name: scenario for scenario in SCENARIOS}
