"""refold.topology"""

from __future__ import annotations
