"""Every metric refold exposes: one closed list with advice; dashboards and alerts use no other name.

Names carry their unit; counters end in ``_total``. Labels are bounded: a partition number, a word from a
list in the code. Never a session, tenant, producer or anything from a payload.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, Literal, get_args

MetricName = Literal[
    # --- what the fold did ---------------------------------------------------------------------------------
    "refold_records_folded_total",
    "refold_duplicates_total",
    "refold_rejected_total",
    "refold_forwards_total",
    "refold_unknown_types_total",
    "refold_input_bytes_total",
    # --- generations ---------------------------------------------------------------------------------------
    "refold_batches_total",
    "refold_batches_ignored_total",
    "refold_batches_refused_total",
    "refold_batches_bytes_total",
    "refold_batches_wait_seconds",
    "refold_side_records_total",
    "refold_timers_proposed_total",
    "refold_usage_events_total",
    # --- commits -------------------------------------------------------------------------------------------
    "refold_commits_total",
    "refold_commit_aborts_total",
    "refold_fenced_total",
    "refold_dead_fenced_total",
    "refold_commit_seconds",
    "refold_commit_events",
    "refold_state_bytes_total",
    "refold_store_write_seconds",
    # --- partitions and recovery ---------------------------------------------------------------------------
    "refold_partitions",
    "refold_partition_state",
    "refold_partition_transitions_total",
    "refold_restores_total",
    "refold_restore_records_total",
    "refold_restore_bytes_total",
    "refold_restore_seconds",
    "refold_restore_served_seconds",
    "refold_parking_full_total",
    "refold_takeover_wait_seconds",
    "refold_store_dead_opens_total",
    "refold_store_validations_total",
    "refold_store_validation_bytes_total",
    # --- checkpoints ---------------------------------------------------------------------------------------
    "refold_checkpoints_total",
    "refold_checkpoint_bytes_total",
    "refold_checkpoint_seconds",
    "refold_checkpoint_age_seconds",
    "refold_checkpoint_restores_total",
    "refold_checkpoint_skips_total",
    # --- standbys ------------------------------------------------------------------------------------------
    "refold_standby_partitions",
    "refold_standby_lag_records",
    "refold_standby_age_seconds",
    "refold_standby_records_total",
    "refold_standby_bytes_total",
    "refold_standby_rebuilds_total",
    # --- is it fresh? --------------------------------------------------------------------------------------
    "refold_lag_records",
    "refold_staleness_seconds",
    "refold_reads_begun_anew_total",
    # --- is it about to run out? ---------------------------------------------------------------------------
    "refold_cache_bytes",
    "refold_cache_bytes_max",
    "refold_cache_lookups_total",
    "refold_overlay_bytes",
    "refold_overlay_bytes_max",
    "refold_paused_partitions",
    "refold_queue_full_total",
    "refold_data_free_bytes",
    "refold_loop_lag_seconds",
    # --- faults of ours ------------------------------------------------------------------------------------
    "refold_quarantines_total",
    "refold_quarantined_sessions",
    "refold_reducer_quarantined_total",
    # --- the HTTP port -------------------------------------------------------------------------------------
    "refold_http_requests_total",
    "refold_http_request_seconds",
    # --- identity ------------------------------------------------------------------------------------------
    "refold_worker_info",
]

Kind = Literal["counter", "gauge", "histogram"]

METRIC_NAMES: Final[tuple[MetricName, ...]] = get_args(MetricName)

#: 1 ms .. 10 s: a bare transaction takes 2-3 ms here, a transaction past 10 s is aborted by the broker.
COMMIT_BUCKETS_SECONDS: Final = (0.001, 0.002, 0.003, 0.005, 0.0075, 0.01, 0.02, 0.05, 0.1, 0.25, 1.0, 10.0)
#: Powers of four up to what an overlay holds.
EVENTS_BUCKETS: Final = (1, 4, 16, 64, 256, 1024, 4096, 16384)
#: 50 ms (nothing missing locally) .. 10 min (a lost disk).
RESTORE_BUCKETS_SECONDS: Final = (0.05, 0.1, 0.25, 0.5, 1, 2, 5, 10, 30, 60, 180, 600)
#: Memory reads answer in < 1 ms; waits (`wait_ms`) may take up to a minute.
HTTP_BUCKETS_SECONDS: Final = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.5, 2.5, 10, 60)


@dataclass(frozen=True, slots=True)
class Metric:
    """``advice`` is what the reference page says: the meaning, and what to look at when it moves."""

    kind: Kind
    advice: str
    labels: tuple[str, ...] = ()
    buckets: tuple[float, ...] = ()


METRICS: Final[Mapping[MetricName, Metric]] = {
    "refold_records_folded_total": Metric(
        "counter",
        "Events accepted and folded. Flat while lag rises: the worker is stuck, see RefoldNotFresh.",
    ),
    "refold_duplicates_total": Metric(
        "counter",
        "Duplicates absorbed. A step after a deploy is expected; a steady rate is a producer's retry loop.",
    ),
    "refold_rejected_total": Metric(
        "counter",
        "Records that could not be taken, by code. Look at them with `refold rejected list`.",
        ("code",),
    ),
    "refold_forwards_total": Metric(
        "counter",
        "Records on a partition that is not their key's, forwarded. A steady rate: a producer's partitioner.",
    ),
    "refold_unknown_types_total": Metric(
        "counter", "Events of types this version does not know: kept, sequenced and passed on."
    ),
    "refold_input_bytes_total": Metric("counter", "Bytes read from the inbox."),
    "refold_batches_total": Metric("counter", "Records of batches folded: batches, acks and markers."),
    "refold_batches_ignored_total": Metric(
        "counter",
        "Of those ignored, by reason: repeat, fenced (an attempt that was replaced), late (after the end),"
        " stale (an ack of a text that is gone), marker. A steady rate of fenced: a producer that does not"
        " notice.",
        ("reason",),
    ),
    "refold_batches_refused_total": Metric(
        "counter",
        "Of those sent to the rejected topic, by code. `refold rejected list` shows them.",
        ("code",),
    ),
    "refold_batches_bytes_total": Metric("counter", "Bytes read from batches."),
    "refold_batches_wait_seconds": Metric(
        "histogram",
        "How long the inbox of a partition waited until its batches had caught up (rule G10). Above a second:"
        " an open transaction on batches, or a worker that is behind.",
        (),
        COMMIT_BUCKETS_SECONDS,
    ),
    "refold_side_records_total": Metric(
        "counter",
        "Side records and their tombstones produced, by kind: `generation`, `usage`, `timer`.",
        ("kind",),
    ),
    "refold_timers_proposed_total": Metric(
        "counter",
        "Deadlines that have come, as proposed to the inbox; some twice. Far more than sessions with timers"
        " explain: this machine's clock is ahead of the brokers', or commits abort.",
    ),
    "refold_usage_events_total": Metric(
        "counter",
        "Committed events of usage by type, and of the records those `late` (for the minute at least)"
        " and `future` (rule W2). Many of those: a producer's clock is wrong.",
        ("kind",),
    ),
    "refold_commits_total": Metric("counter", "Transactions committed."),
    "refold_commit_aborts_total": Metric(
        "counter",
        "Transactions aborted, their events folded again. Some at a rebalance are normal.",
        ("reason",),
    ),
    "refold_fenced_total": Metric(
        "counter", "This worker lost its name or its partitions to another one and stopped writing."
    ),
    "refold_dead_fenced_total": Metric(
        "counter", "Open transactions of dead workers ended at a takeover (rule D)."
    ),
    "refold_commit_seconds": Metric("histogram", "Begin to committed.", (), COMMIT_BUCKETS_SECONDS),
    "refold_commit_events": Metric(
        "histogram", "Events per commit. Near the top all the time: saturated.", (), EVENTS_BUCKETS
    ),
    "refold_state_bytes_total": Metric(
        "counter",
        "Bytes of state records produced. Per event: how well commits share the writes of a session.",
    ),
    "refold_store_write_seconds": Metric(
        "histogram",
        "RocksDB batch after a commit. Above 0.1 s the disk is the bottleneck.",
        (),
        COMMIT_BUCKETS_SECONDS,
    ),
    "refold_partitions": Metric("gauge", "Partitions of this worker by state.", ("state",)),
    "refold_partition_state": Metric("gauge", "1 for the state a partition is in.", ("partition", "state")),
    "refold_partition_transitions_total": Metric(
        "counter",
        "Steps of the partitions' lifecycle. Many from live or restoring to waiting: disks or takeovers fail;"
        " the log's partition_moved says which and why.",
        ("before", "state"),
    ),
    "refold_restores_total": Metric("counter", "Restores finished, by outcome (done, failed).", ("outcome",)),
    "refold_restore_records_total": Metric("counter", "Changelog records read by restores."),
    "refold_restore_bytes_total": Metric(
        "counter",
        "Bytes of changelogs read by restores as they go on: keys and values, uncompressed. Its rate is what"
        " worker.restore_bytes_per_s_max bounds.",
    ),
    "refold_restore_seconds": Metric(
        "histogram", "Assigned to live, waiting included.", (), RESTORE_BUCKETS_SECONDS
    ),
    "refold_restore_served_seconds": Metric(
        "histogram",
        "Assigned to served, where worker.hot_first serves a partition before it is live.",
        (),
        RESTORE_BUCKETS_SECONDS,
    ),
    "refold_parking_full_total": Metric(
        "counter", "Times a source stopped because no more records could wait for their sessions (hot first)."
    ),
    "refold_takeover_wait_seconds": Metric(
        "histogram", "Waiting for a predecessor's open transaction (rules T, D).", (), RESTORE_BUCKETS_SECONDS
    ),
    "refold_store_dead_opens_total": Metric(
        "counter",
        "Local stores set aside and rebuilt instead of used, by reason: damaged (files that cannot be read),"
        " differs (not what the changelogs say), foreign (another program's or partition's), other_topic,"
        " format, ahead, too_old. damaged or differs more than once: check the disk.",
        ("reason",),
    ),
    "refold_store_validations_total": Metric(
        "counter",
        "Local copies compared with their changelogs, by outcome: done, differs or unreadable (set aside and"
        " restored), given_up (the partition left, or the worker stopped), failed (again later).",
        ("outcome",),
    ),
    "refold_store_validation_bytes_total": Metric(
        "counter", "Bytes of changelogs read to validate local copies: keys and values, uncompressed."
    ),
    "refold_checkpoints_total": Metric(
        "counter",
        "Checkpoints by outcome: done, unchanged (the store had it already), failed. Failed ones: read the"
        " warning checkpoint_failed; folding and committing go on.",
        ("outcome",),
    ),
    "refold_checkpoint_bytes_total": Metric(
        "counter",
        "Bytes of checkpoints: uploaded, or reused because the store had the file; fetched by restores."
        " Mostly uploaded: compaction rewrites everything, or files are deleted from the store.",
        ("outcome",),
    ),
    "refold_checkpoint_seconds": Metric(
        "histogram",
        "From taking a checkpoint to its manifest. Near the interval: the store is too slow for it.",
        buckets=RESTORE_BUCKETS_SECONDS,
    ),
    "refold_checkpoint_age_seconds": Metric(
        "gauge",
        "Time since the last checkpoint, 0 when it holds everything. Several intervals: uploads fail.",
        ("partition",),
    ),
    "refold_checkpoint_restores_total": Metric(
        "counter",
        "Restores that asked for a checkpoint, by outcome: used, none (no better one than the local copy),"
        " unreachable (the store did not answer; the changelogs were read instead).",
        ("outcome",),
    ),
    "refold_checkpoint_skips_total": Metric(
        "counter",
        "Checkpoints that a restore could not use, by reason. missing, damaged, manifest or filter: run"
        " `refold checkpoint verify`. too_old, ahead, other_topic, format, schemas: by rule.",
        ("reason",),
    ),
    "refold_standby_partitions": Metric("gauge", "Copies of partitions of other workers that are kept here."),
    "refold_standby_lag_records": Metric(
        "gauge", "Offsets of a copy's changelogs below their stable ends and not read yet.", ("partition",)
    ),
    "refold_standby_age_seconds": Metric(
        "gauge",
        "Everything committed so many seconds ago is in the copy; while it is being made, since when it is."
        " Above a few seconds: it does not keep up, or worker.restore_bytes_per_s_max holds it back.",
        ("partition",),
    ),
    "refold_standby_records_total": Metric("counter", "Changelog records read for copies."),
    "refold_standby_bytes_total": Metric(
        "counter",
        "Bytes of changelogs read for copies: keys and values, uncompressed. Paced with those of restores.",
    ),
    "refold_standby_rebuilds_total": Metric(
        "counter",
        "Copies that could not be gone on with, by reason: too_old (rule Z), log_gone (the changelog no"
        " longer holds their place), damaged, disk, log. Begun again.",
        ("reason",),
    ),
    "refold_lag_records": Metric("gauge", "Inbox records not yet ruled on.", ("partition",)),
    "refold_staleness_seconds": Metric(
        "gauge", "Age of the oldest inbox record not yet ruled on; 0 when there is none.", ("partition",)
    ),
    "refold_reads_begun_anew_total": Metric(
        "counter",
        "Partitions whose records waited and whose position did not move for seconds, so that their fetching"
        " was begun anew: librdkafka had lost them, or a transaction is open.",
    ),
    "refold_cache_bytes": Metric("gauge", "Encoded bytes of the decoded sessions in memory."),
    "refold_cache_bytes_max": Metric("gauge", "Bound of refold_cache_bytes (worker.cache_bytes_max)."),
    "refold_cache_lookups_total": Metric(
        "counter", "Sessions looked up in the cache, by outcome (hit, miss).", ("outcome",)
    ),
    "refold_overlay_bytes": Metric("gauge", "Encoded bytes folded and not yet committed."),
    "refold_overlay_bytes_max": Metric("gauge", "Bound of refold_overlay_bytes (worker.overlay_bytes_max)."),
    "refold_paused_partitions": Metric("gauge", "Partitions paused because a bound is reached."),
    "refold_queue_full_total": Metric("counter", "The producer's queue was full and the worker waited."),
    "refold_data_free_bytes": Metric("gauge", "Bytes free where the data directory is."),
    "refold_loop_lag_seconds": Metric("gauge", "How late the event loop ran a timer."),
    "refold_quarantines_total": Metric("counter", "Sessions whose fold raised: parked, not lost."),
    "refold_quarantined_sessions": Metric(
        "gauge", "Sessions quarantined now, as far as this worker has seen."
    ),
    "refold_reducer_quarantined_total": Metric(
        "counter",
        "Parts of sessions whose reducer was stopped, by reducer and reason.",
        ("reducer", "reason"),
    ),
    "refold_http_requests_total": Metric(
        "counter", "Requests by route pattern and status class (2xx, 4xx, 5xx).", ("route", "status")
    ),
    "refold_http_request_seconds": Metric("histogram", "Time to answer.", ("route",), HTTP_BUCKETS_SECONDS),
    "refold_worker_info": Metric("gauge", "Always 1: version and instance.", ("version", "instance")),
}


def reference() -> str:
    """The text of ``docs/reference/metrics.md``."""
    rows = []
    for name in METRIC_NAMES:
        metric = METRICS[name]
        labels = ", ".join(f"`{label}`" for label in metric.labels)
        rows.append(f"| `{name}` | {metric.kind} | {labels} | {metric.advice} |")
    return _HEAD + "\n".join(rows) + "\n"


_HEAD: Final = """# Metrics

Generated by `python -m refold.telemetry.names`; a test fails when this page and the code differ. The list is
closed: a worker exposes no other name under `refold_`. Labels are bounded and never hold a session, tenant,
producer or anything from a payload.

| name | kind | labels | meaning and advice |
| --- | --- | --- | --- |
"""


if __name__ == "__main__":
    print(reference(), end="")
