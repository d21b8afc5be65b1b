"""refold.wire"""

from __future__ import annotations
