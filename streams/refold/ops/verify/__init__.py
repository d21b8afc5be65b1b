"""``refold verify``: prove the guarantees against a real Kafka, with an oracle of its own.

``chaos`` drives traffic with every kind of awkward record, lets workers die, and then compares:
:mod:`plan` says what will happen for a seed, :mod:`traffic` sends it, :mod:`readback` reads the topics,
:mod:`oracle` says what should be there (from the inbox alone, without :mod:`refold.core`), :mod:`judge`
counts the differences, :mod:`chaos` runs it all.
"""

from __future__ import annotations
