"""Kafka's protocol as far as our own producers speak it; consumers and admin calls are librdkafka's.

::

    wire ── requests ── dialect ── connection ── brokers
                                    security      batches

Two producers are built on it, because librdkafka's sends one request per partition: the worker's
(:mod:`refold.engine.producer`) and the SDK's (:mod:`refold.client.wired`).
"""

from __future__ import annotations
