"""How much one session may hold, and why that always fits one record of the state topic.

Invariant S8: an encoded snapshot is at most ``STATE_RECORD_BYTES_MAX`` bytes, whatever arrives. The sum is
written out in :data:`STATE_RECORD_WORST_BYTES`; tests/core/test_limits.py checks the sum and attacks it.
"""

from __future__ import annotations

from typing import Final

KIB: Final = 1024

#: Below Kafka's default ``max.message.bytes`` of 1 MiB with room for key, headers and batch overhead.
STATE_RECORD_BYTES_MAX: Final = 900_000

#: Event, message, call, operation, producer and actor ids, fact and tool names: longer ones are refused.
ID_BYTES_MAX: Final = 256
ROLE_BYTES_MAX: Final = 32
#: A character has at most four bytes: a text of no more characters needs no encoding to be measured. The same
#: for the names further down (``…_CHARS_SHORT``).
CHAR_BYTES_MAX: Final = 4
ID_CHARS_SHORT: Final = ID_BYTES_MAX // CHAR_BYTES_MAX
ROLE_CHARS_SHORT: Final = ROLE_BYTES_MAX // CHAR_BYTES_MAX

# --- context -----------------------------------------------------------------------------------------

#: "The last few raw messages" unless the session's settings say otherwise.
WINDOW_MESSAGES_DEFAULT: Final = 20
WINDOW_BYTES_DEFAULT: Final = 128 * KIB
#: The most a session's settings may ask for, and where a turn that is too long is cut inside.
WINDOW_MESSAGES_MAX: Final = 100
WINDOW_BYTES_MAX: Final = 128 * KIB
WINDOW_MESSAGES_MIN: Final = 1
WINDOW_BYTES_MIN: Final = 1 * KIB

#: A larger body is not kept in the snapshot: length and sha256 stand for it, the journal has it at ``seq``.
MESSAGE_INLINE_BYTES_MAX: Final = 32 * KIB

#: Pinned system and developer messages; more of them are ordinary messages of their turn.
SYSTEM_MESSAGES_MAX: Final = 8
SYSTEM_BYTES_MAX: Final = 48 * KIB

#: Messages off the active path.
BRANCH_MESSAGES_MAX: Final = 48
BRANCH_BYTES_MAX: Final = 56 * KIB
#: Where the paths that were left had been cut off, so that coming back finds the same context.
TRUNKS_MAX: Final = 16
#: Ids that stand for another place in the tree (messages not placed themselves).
ALIASES_MAX: Final = 32

SUMMARY_BYTES_MAX: Final = 32 * KIB

#: Messages named as answered by one result message.
ANSWERS_MAX: Final = 16

#: A seq that somebody else states, its distance, a count of messages: far inside 64 bits, so that sums are,
#: and forks of forks can move seqs again.
SEQ_DISTANCE_MAX: Final = 1 << 53

# --- tools -------------------------------------------------------------------------------------------

#: Rows not final, ``unknown`` ones included.
OPEN_CALLS_MAX: Final = 64
#: What a session may hold that an older version filled: rows that wait for somebody are never dropped.
OLDER_OPEN_CALLS_MAX: Final = 96
#: Final rows kept, newest first.
CLOSED_CALLS_MAX: Final = 32
TOOLS_BYTES_MAX: Final = 112 * KIB
#: A ledger below this has dropped no rows for their bytes: dropping stops at the limit, and the largest row
#: (arguments 4 KiB, summary and error 1 KiB each, ids) is a twentieth of it.
QUIET_TOOLS_BYTES: Final = TOOLS_BYTES_MAX // 2
#: Operation id of the row that stands for pruned ones (O6): nobody can give a call an id that begins with @.
PRUNED_CALLS: Final = "@pruned"
ARGUMENTS_INLINE_BYTES_MAX: Final = 4 * KIB
RESULT_SUMMARY_BYTES_MAX: Final = 1 * KIB
ERROR_BYTES_MAX: Final = 1 * KIB
ERROR_CODE_BYTES_MAX: Final = 64
EFFECT_BYTES_MAX: Final = 32

#: Results whose call is not known, or whose call's message has not come yet.
ORPHANS_MAX: Final = 16
#: Bodies and what is remembered of their results, together.
ORPHANS_BYTES_MAX: Final = 32 * KIB
ORPHAN_INLINE_BYTES_MAX: Final = 8 * KIB
#: A held result keeps this much of its summary and error, so that the records beside the bodies stay small.
ORPHAN_TEXT_BYTES_MAX: Final = 256

#: Of a call or a generation. A lease longer than a year is a mistake, and this keeps the sum with a session
#: time of 2100 far inside 64 bits.
LEASE_MS_MAX: Final = 366 * 24 * 3600 * 1000

# --- generations -------------------------------------------------------------------------------------

#: Rows not ended, and ended ones kept, newest first.
OPEN_GENERATIONS_MAX: Final = 8
ENDED_GENERATIONS_MAX: Final = 8
#: Ids and names in a row (generation, message, generator, holder): sixteen rows stand in the state record.
#: ``reply_to`` and the provider's id may be as long as any other id.
GENERATION_NAME_BYTES_MAX: Final = 128
GENERATION_NAME_CHARS_SHORT: Final = GENERATION_NAME_BYTES_MAX // CHAR_BYTES_MAX
FINISH_REASON_BYTES_MAX: Final = 64
#: The parameters are in the journal; the state has their digest.
PARAMS_BYTES_MAX: Final = 32 * KIB

# What follows is in a generation's own record, not in the state.

#: Clients whose acks are kept; the one not heard of for longest goes.
ACK_CLIENTS_MAX: Final = 64
ACK_CLIENT_BYTES_MAX: Final = 64
#: A provider that reports more tokens than this is wrong; sums stay here too, far inside 64 bits.
USAGE_MAX: Final = 10**15

# --- usage windows (rows of their own, not in the state) ------------------------------------------------

#: Subject, model and lease id: 512 leases of a row stand in one record of the generations topic. With session
#: ids as long as a key may be that is 512 x (128 + 510 + 16) = 335 KB of the 1 MB it takes.
USAGE_NAME_BYTES_MAX: Final = 128
USAGE_NAME_CHARS_SHORT: Final = USAGE_NAME_BYTES_MAX // CHAR_BYTES_MAX
USAGE_LEASES_MAX: Final = 512
#: A day. A row is kept for two, so none of its leases outlives it.
USAGE_LEASE_MS_MAX: Final = 24 * 3600 * 1000
#: One event's count. Four million of the largest fit 64 bits; a sum stops before it would not.
USAGE_VALUE_MAX: Final = 10**12

# --- runs ----------------------------------------------------------------------------------------------

OPEN_RUNS_MAX: Final = 4
#: Ended ones kept, newest first, without their steps.
ENDED_RUNS_MAX: Final = 4
#: Of one run, planned ones included.
RUN_STEPS_MAX: Final = 64
#: All rows of runs and steps, as counted by ``core.run_sizes``.
RUNS_BYTES_MAX: Final = 64 * KIB
#: Ids and names in a row: run, agent, pin, version, holder, step (an @ before it not counted).
RUN_NAME_BYTES_MAX: Final = 128
#: Inputs of runs, outputs of runs and steps; longer ones are in the journal.
RUN_INLINE_BYTES_MAX: Final = 1 * KIB
#: A longer reference is left to the journal as well.
RUN_REF_BYTES_MAX: Final = 512
RUN_SUMMARY_BYTES_MAX: Final = 512
RUN_ERROR_BYTES_MAX: Final = 256
#: Calls that a suspended run waits for.
RUN_WAITING_MAX: Final = 8
#: Failures of a step that are tried again.
RUN_RETRIES_MAX: Final = 2
STEP_INPUTS_MAX: Final = 16
STEP_READS_MAX: Final = 32
#: SHA-256 in hex, or whatever else somebody names a value by.
DIGEST_BYTES_MAX: Final = 64
#: A ready run that nobody took is announced again after this, then after twice that …
NOTICE_FIRST_MS: Final = 15_000
#: … and at last always after this: twelve records an hour.
NOTICE_LAST_MS: Final = 300_000
#: Versions a taker says it can go on with.
RUN_ACCEPTS_MAX: Final = 16

# --- children, reducers ----------------------------------------------------------------------------------

CHILDREN_MAX: Final = 64
#: Ids and what stands beside them: ``len(session) + len(call) + CHILD_ROW_BYTES`` each.
CHILDREN_BYTES_MAX: Final = 12 * KIB
CHILD_ROW_BYTES: Final = 32
REDUCED_PARTS_MAX: Final = 16
REDUCED_NAME_BYTES_MAX: Final = 128
REDUCED_ERROR_BYTES_MAX: Final = 256
#: Each part: state, name, error and REDUCED_ROW_BYTES.
REDUCED_BYTES_MAX: Final = 48 * KIB
REDUCED_ROW_BYTES: Final = 48

# --- facts and configuration --------------------------------------------------------------------------

FACTS_MAX: Final = 64
FACT_BYTES_MAX: Final = 8 * KIB
FACTS_BYTES_MAX: Final = 48 * KIB
CONFIG_BYTES_MAX: Final = 32 * KIB
#: Deeper JSON (arguments, facts) counts as invalid: parsers recurse, and their limits differ.
JSON_DEPTH_MAX: Final = 100

# --- de-duplication ----------------------------------------------------------------------------------

PRODUCERS_MAX: Final = 64
#: The window of plain producers, in events.
DEDUP_EVENT_IDS_MAX: Final = 128
#: Ids of messages that left the snapshot and are still recognised.
DEDUP_MESSAGE_IDS_MAX: Final = 64
#: 8 bytes of id hash, 4 of content hash, 4 of seq.
DEDUP_ENTRY_BYTES: Final = 16
#: Trimmed messages of the active path a late summary may still name.
TRAIL_MAX: Final = 64

# --- the sum -----------------------------------------------------------------------------------------

_NUMBER: Final = 10  # a long in Avro
_ID: Final = ID_BYTES_MAX + 4  # its bytes, a length of two, a union branch, the @ of ids we make
_SHA256: Final = 67

#: seq, time, size; parent; actor; flags; answers; what stands for an elided body.
MESSAGE_OVERHEAD_BYTES: Final = 4 * _NUMBER + 2 * _ID + 6 + ANSWERS_MAX * _NUMBER + _SHA256
#: A body without content: message and parent id, role, empty content, nine nulls.
MESSAGE_STUB_BYTES: Final = 2 * _ID + ROLE_BYTES_MAX + 1 + 10
#: A row without arguments, summary and error text: five ids, effect, code, digest, flags, 16 numbers.
CALL_ROW_BYTES: Final = 5 * _ID + EFFECT_BYTES_MAX + ERROR_CODE_BYTES_MAX + _SHA256 + 40 + 16 * _NUMBER

_NAME: Final = GENERATION_NAME_BYTES_MAX + 3
_SHORT_WORDS: Final = 40  # state, mode, durability, with their lengths
#: Four names, two ids, a digest, seven numbers.
OPEN_GENERATION_BYTES: Final = 4 * _NAME + 2 * _ID + _SHA256 + _SHORT_WORDS + 7 * _NUMBER
#: Without holder, lease and the provider's id; with digest, finish reason and error code.
ENDED_GENERATION_BYTES: Final = (
    3 * _NAME
    + _ID
    + 2 * _SHA256
    + FINISH_REASON_BYTES_MAX
    + ERROR_CODE_BYTES_MAX
    + 6
    + _SHORT_WORDS
    + 7 * _NUMBER
)

#: About 878 KB of the 900: what remains is slack for list headers.
STATE_RECORD_WORST_BYTES: Final = (
    WINDOW_BYTES_MAX
    + WINDOW_MESSAGES_MAX * MESSAGE_OVERHEAD_BYTES
    + SYSTEM_BYTES_MAX
    + SYSTEM_MESSAGES_MAX * MESSAGE_OVERHEAD_BYTES
    + BRANCH_BYTES_MAX
    + BRANCH_MESSAGES_MAX * (MESSAGE_OVERHEAD_BYTES + 2 * _ID + _NUMBER + 2)  # each may be a leaf
    + (TRUNKS_MAX + ALIASES_MAX) * (2 * _ID + 4 * _NUMBER)
    + SUMMARY_BYTES_MAX
    + _ID
    + FACTS_MAX * (_ID + _NUMBER + 3)
    + FACTS_BYTES_MAX
    + CONFIG_BYTES_MAX
    + _SHA256
    + TOOLS_BYTES_MAX
    + ORPHANS_BYTES_MAX
    + ORPHANS_MAX * MESSAGE_OVERHEAD_BYTES
    + PRODUCERS_MAX * (_ID + 4 * _NUMBER)
    + (DEDUP_EVENT_IDS_MAX + DEDUP_MESSAGE_IDS_MAX) * DEDUP_ENTRY_BYTES
    + TRAIL_MAX * _NUMBER
    + OPEN_GENERATIONS_MAX * OPEN_GENERATION_BYTES
    + ENDED_GENERATIONS_MAX * ENDED_GENERATION_BYTES
    + RUNS_BYTES_MAX
    + CHILDREN_BYTES_MAX
    + REDUCED_BYTES_MAX
    + 4 * KIB  # key fields, status, frontier, link, settings, policy, deadline
)
