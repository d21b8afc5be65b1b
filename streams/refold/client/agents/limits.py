"""Every limit of durable agents, named with its unit."""

from __future__ import annotations

from typing import Final

#: Lease of a run unless the agent asks for another: a dead process's run is taken over after this long. Three
#: renewals fall into it, one event of about 150 bytes every 3.3 s and running run.
LEASE_S_DEFAULT: Final = 10.0
#: Shorter ones end before a busy fold has ruled on them.
LEASE_S_MIN: Final = 1.0
LEASE_S_MAX: Final = 3600.0

#: A step that shows no life for this long counts as stuck (rule N7).
STEP_HEARTBEAT_S_DEFAULT: Final = 300.0
STEP_HEARTBEAT_S_MIN: Final = 1.0
STEP_HEARTBEAT_S_MAX: Final = 7 * 24 * 3600.0
#: Signs of life are events: at most so many in the time after which silence counts.
BEATS_PER_HEARTBEAT: Final = 4

#: Retries of a step unless it asks for fewer (product rule: at most two, then a person).
RETRIES_MAX: Final = 2
#: Pause before a retry: 0.5 s, then 1 s. A provider that is overloaded for longer is a person's to judge.
RETRY_PAUSE_S: Final = 0.5
RETRY_PAUSE_S_MAX: Final = 5.0

#: Runs at once in one process. Each holds a lease (0.3 events/s) and the outputs its body refers to.
CONCURRENCY_DEFAULT: Final = 8
CONCURRENCY_MAX: Final = 1_000

#: How long a drain waits for running steps before it gives them up.
DRAIN_S_DEFAULT: Final = 60.0
#: Giving leases back and closing the client at the end of a drain or a cancelled serve: one event per run.
RELEASE_S_MAX: Final = 5.0

#: A new step waits this long for recorded ones that the body has not asked for yet (two branches of a body
#: may come in another order). Between two steps a body computes; what takes longer belongs in a step.
REPLAY_GRACE_S: Final = 2.0

#: Recorded outputs read from the journal at once when a run is resumed; a read takes 3 to 10 ms.
OUTPUT_READS_MAX: Final = 4

#: Items of the work topic kept in memory, about 500 bytes each: 50 MB. What does not fit is announced again
#: by the fold when nobody has taken it (rule N8).
WORK_ITEMS_MAX: Final = 100_000

#: First jitter before a run is asked for after a refusal, and the longest: well inside the two seconds that
#: a hand-over may take over the lease.
JITTER_S_MIN: Final = 0.01
JITTER_S_MAX: Final = 0.5

#: Others need not leave a run alone that is to avoid them, when nobody else has taken it by then (N7).
AVOID_S: Final = 30.0
#: A process whose version does not fit the pin has nothing to do with the run; it looks again when the item
#: changes. A run that the fold refused to this process for another reason is asked for again after this.
REFUSED_PAUSE_S: Final = 1.0
#: The same when nothing answers.
UNAVAILABLE_PAUSE_S: Final = 1.0

#: Of a brief: inputs are cut, and the whole.
BRIEF_INPUT_BYTES_MAX: Final = 1_024
BRIEF_BYTES_MAX: Final = 16 * 1024
#: Of a summary that nobody wrote: the beginning of the output.
SUMMARY_CHARS_DEFAULT: Final = 160

#: One look at a run that is waited for.
RESULT_LOOK_S: Final = 5.0
RESULT_PAUSE_S: Final = 0.05

#: Of a holder's name: enough of the producer id to find the process; a nonce of 16 follows.
HOLDER_PROCESS_CHARS: Final = 80

#: Executions of one body under one lease: again where a step was invalidated behind it. More than a person
#: invalidates while a run ends.
ROUNDS_MAX: Final = 20
