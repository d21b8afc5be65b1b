"""refold.testing"""

from __future__ import annotations
