"""refold.agents"""

from __future__ import annotations
