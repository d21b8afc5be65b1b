"""A transactional producer that sends the records of all partitions in one request per broker.

Why not librdkafka's: it sends one Produce request per partition, and a broker answers the requests of one
connection one after the other. A commit over four partitions is eight of them, each with a verification of
its own at the transaction's coordinator (KIP-890): at 1 000 events/s half of what an event waits for. Here it
is one request and one verification.

It speaks through :mod:`refold.protocol`.

:class:`~refold.engine.producer.producer.WireProducer` has the methods of ``confluent_kafka.Producer`` that
:class:`refold.engine.commit.Transactor` calls, with the same errors.
"""

from __future__ import annotations
