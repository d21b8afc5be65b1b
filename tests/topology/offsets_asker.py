"""Asks for a group's committed offsets without a pause, in several threads, and says on stdout how that goes:
``answered`` and ``unanswered``, a line each time that all of them have changed to it. Ends with its stdin.

``python offsets_asker.py BOOTSTRAP GROUP TOPIC``
"""

from __future__ import annotations

import sys
import threading

from confluent_kafka import KafkaException, TopicPartition

from refold.topology.groupoffsets import GroupOffsets

THREADS = 4
ANSWER_S_MAX = 1.0


def main(bootstrap: str, group: str, topic: str) -> None:
    offsets = GroupOffsets({"bootstrap.servers": bootstrap, "reconnect.backoff.max.ms": 500}, group)
    lock = threading.Lock()
    last: dict[int, str] = {}
    # Nobody expects an answer yet: the group's coordinator has to come into being first.
    said = ["unanswered"]

    def asking(number: int) -> None:
        # Both kinds at once: each has a consumer of its own.
        ask = offsets.stable if number % 2 else offsets.newest
        while True:
            try:
                word = "answered" if ask([TopicPartition(topic, 0)], ANSWER_S_MAX) else "held"
            except KafkaException:
                word = "unanswered"
            with lock:
                last[number] = word
                if list(last.values()) == [word] * THREADS and said[0] != word:
                    said[0] = word
                    print(word, flush=True)

    for number in range(THREADS):
        threading.Thread(target=asking, args=(number,), daemon=True).start()
    sys.stdin.read()


if __name__ == "__main__":
    main(*sys.argv[1:])
