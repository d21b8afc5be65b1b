"""The SDK's own producer: one request per broker, with all partitions that it leads.

Why not librdkafka's: it sends a request per partition (its issue 1700), and each costs the broker as much as
one with all of them; the worker that reads the topic is woken by each as well. See
docs/internals/producer.md.

::

    gathering ── line ── courier ── carrier          refold.protocol

The guarantees are librdkafka's: ``acks=all``, idempotent, what is not acknowledged is sent again until
``client.delivery_timeout_ms``. Order within a session is the caller's (:mod:`refold.client.ordering` has at
most one event of a session under way); between sessions there is none.
"""

from __future__ import annotations
