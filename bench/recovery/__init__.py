"""How long until state is served again, beside Kafka Streams with the same bytes and the same events.

``python -m bench.recovery``: see :mod:`bench.recovery.__main__` and ``docs/reference/recovery-figures.md``.
"""

from __future__ import annotations
