"""Why a record is refused: a closed list, each code with its way out.

Codes are wire contract (header ``refold-code`` of the rejected topic, rulings, metrics labels): a code is
never renamed or given another meaning. The upper half is ruled on the bytes, before there is a session;
the lower half by :func:`refold.core.decide.decide`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, Literal, get_args

RejectCode = Literal[
    # --- the record itself -------------------------------------------------------------------------
    # No key, not UTF-8, no slash, an empty half, or longer than the limit.
    "bad_key",
    # The key does not name the tenant and session in the envelope.
    "key_mismatch",
    # Empty value (a null value is a deletion, not an error).
    "empty_value",
    # Shorter than its frame (magic and schema id or GUID).
    "bad_frame",
    # The first byte is neither magic 0 nor magic 1.
    "bad_magic",
    # The frame names a schema id or GUID that no configured registry knows.
    "unknown_schema",
    # A record of another subject than belongs here (a snapshot in the inbox, a payload of another type).
    "unknown_subject",
    # The bytes do not follow the schema they name, or end early, or go on after it.
    "undecodable",
    # A string that is not UTF-8.
    "bad_text",
    # A string with half of a surrogate pair, for which no UTF-8 exists.
    "lone_surrogate",
    # A text that must be JSON is not.
    "bad_json",
    # A message of a foreign format that cannot be one of ours.
    "bad_message",
    # Larger than the named limit for such a record, text or list.
    "too_large",
    # Forwarded more often than the hop limit: the workers disagree about the slot map.
    "too_many_hops",
    # --- ids and values ----------------------------------------------------------------------------
    # An id that must be there is empty, or an id is longer than ID_BYTES_MAX.
    "bad_id",
    # A value out of its range or not of its form (JSON, digest, setting).
    "bad_value",
    # --- de-duplication ----------------------------------------------------------------------------
    # The id is known with other content.
    "conflict",
    # The producer id is known with a newer epoch: this writer was replaced.
    "stale_producer",
    # The producer is not remembered and the event is older than the last forgetting: may be a repeat.
    "too_old_to_judge",
    # PRODUCERS_MAX producers are remembered and none can be forgotten safely.
    "too_many_producers",
    # The session is not at the seq the writer expected.
    "expected_seq",
    # --- session life ------------------------------------------------------------------------------
    # The session is closed and the event would go on with it.
    "session_closed",
    # The event speaks of a session that does not exist.
    "no_session",
    # The session is quarantined or being released: the event is parked, a release replays it.
    "quarantined",
    # A release was asked for, but the session is not quarantined (or not releasing).
    "not_quarantined",
    # More events were parked than the release has replayed: read on and finish again.
    "release_behind",
    # Only the worker writes this type.
    "reserved_type",
    # --- messages, branches, summary ---------------------------------------------------------------
    # The message named is not known to the session.
    "unknown_message",
    # The summary is empty, or ends inside a group that belongs together, or before the one in force.
    "bad_summary",
    # --- tools -------------------------------------------------------------------------------------
    # No call with this operation id or call id, and no room to hold its result.
    "unknown_call",
    # The step is not allowed from the call's present state.
    "illegal_transition",
    # The call has a final status and this is another one.
    "already_final",
    # OPEN_CALLS_MAX calls are open.
    "too_many_open_calls",
    # Someone else holds the lease of the call, generation or run, and it is not over.
    "lease_held",
    # The attempt was replaced by a newer one, or the lease was taken over by someone else.
    "stale_holder",
    # --- generations -------------------------------------------------------------------------------
    # No generation with this id has begun, or it was forgotten.
    "unknown_generation",
    # OPEN_GENERATIONS_MAX generations are open.
    "too_many_open_generations",
    # A batch of an attempt that the journal has not granted.
    "batch_ungranted",
    # A batch whose predecessor is missing.
    "batch_gap",
    # A finished generation names batches that are not on the batches topic.
    "batches_missing",
    # A finished generation's length or digest is not that of its batches.
    "digest_mismatch",
    # --- runs --------------------------------------------------------------------------------------
    # No run with this id has begun, or its row has left.
    "unknown_run",
    # The run has no step with this id.
    "unknown_step",
    # The run is pinned to a version that the taker neither is nor accepts.
    "pin_mismatch",
    # OPEN_RUNS_MAX runs are open, a run has RUN_STEPS_MAX steps, or all have RUNS_BYTES_MAX bytes.
    "runs_full",
    # The session's policy refuses user messages while a generation is open or a run is leased.
    "busy",
    # --- children ----------------------------------------------------------------------------------
    # CHILDREN_MAX children and forks, or CHILDREN_BYTES_MAX bytes of their names, are linked.
    "children_full",
    # --- facts -------------------------------------------------------------------------------------
    # FACTS_MAX facts, or FACTS_BYTES_MAX bytes of them, are held.
    "facts_full",
]

REJECT_CODES: Final[tuple[RejectCode, ...]] = get_args(RejectCode)

#: Code -> what to do about it. Shown by `refold rejected show` and in docs/concepts/session.md.
WAY_OUT: Final[Mapping[RejectCode, str]] = {
    "bad_key": "send the record with key tenant/session in UTF-8",
    "key_mismatch": "make the key from the envelope's tenant and session",
    "empty_value": "send a framed envelope, or a null value to delete the session",
    "bad_frame": "serialise with a Confluent-framing Avro serializer (magic 0 and a 4-byte schema id)",
    "bad_magic": "serialise with a Confluent-framing Avro serializer (magic 0 and a 4-byte schema id)",
    "unknown_subject": "write an envelope to the inbox, with a payload of subject refold.event.<type>",
    "unknown_schema": "register the schema, or point the worker at the registry that has it",
    "undecodable": "serialise with the schema whose id is in the frame",
    "bad_text": "encode text as UTF-8 before sending",
    "lone_surrogate": "replace lone surrogates before sending",
    "bad_json": "send valid JSON: no NaN, no lone surrogates, at most 100 levels",
    "bad_message": "correct the message; the reason names what cannot be mapped",
    "too_large": "send the content as a reference (the SDK does so above its inline limit)",
    "too_many_hops": "check that all workers use one topology and slot map, then replay the record",
    "bad_id": "use a non-empty id of at most 256 bytes (the name of a generation, run or usage: 128)",
    "bad_value": "correct the value the reason names and send a new event",
    "conflict": "use a new id for new content; an edit is a new message with `replaces`",
    "stale_producer": "stop this writer: a newer one with the same producer id took over",
    "too_old_to_judge": "read the session; if the event is missing, send it anew with a right clock",
    "too_many_producers": "let writers share a producer, or correct the clocks of those far ahead",
    "expected_seq": "read the session again and decide anew",
    "session_closed": "reopen it first (SessionReopened, in the SDK `reopen`), or start a new session",
    "no_session": "append a first event before this one",
    "quarantined": "nothing is lost: the event is parked; fix the cause, then `refold session release`",
    "not_quarantined": "nothing to release: the session is folding normally",
    "release_behind": "replay the events parked since, then finish again (`refold session release` does)",
    "reserved_type": "do not send this type; the worker makes it",
    "unknown_message": "name a message that the session's state holds; to one that only its journal has"
    " any more goes `refold session switch --rebuild` (in the SDK `switch_branch`, rebuild=True)",
    "bad_summary": "summarise whole groups of the active path, from its beginning, with text in it",
    "unknown_call": "append the call before what happened to it: an assistant message, or ToolCallIntended"
    " (in the SDK `tool_intended`)",
    "illegal_transition": "read the call's state and follow intended, approval, started, outcome",
    "already_final": "the first final status stands; correct it with a new call",
    "too_many_open_calls": "complete, fail or deny open calls first",
    "lease_held": "wait until the time the reason names, then ask again; or leave it to the holder",
    "stale_holder": "stop working on it: another holder or attempt took over",
    "unknown_generation": "append GenerationStarted and wait for its ruling before any batch",
    "too_many_open_generations": "finish or fail open generations first",
    "batch_ungranted": "append GenerationAttempted and wait for its ruling before its first batch",
    "batch_gap": "send the missing batches, in order; one producer writes an attempt's batches",
    "batches_missing": "wait until the last batch is durable, then append GenerationFinished anew",
    "digest_mismatch": "take length and digest from the batches that were sent, or fail the generation",
    "unknown_run": "append RunStarted (in the SDK `agent.start`) and wait for its ruling before"
    " what happens in the run",
    "unknown_step": "append StepStarted (in the SDK `run.step`) and wait for its ruling before"
    " the step's outcome",
    "pin_mismatch": "leave the run to agents of its version, or move the pin"
    " (RunPinMoved, `refold run move-pin`)",
    "runs_full": "end open runs, or keep outputs, inputs and names of steps short",
    "busy": "wait until the answer under way has ended, or set the policy on_busy to another value",
    "children_full": "begin a new session, or let a child have the further children",
    "facts_full": "remove facts, or keep large values outside and name them by a reference",
}


def way_out(code: str | None) -> str | None:
    """What to do about a code; ``None`` for one of a newer version."""
    return next((words for known, words in WAY_OUT.items() if known == code), None)
