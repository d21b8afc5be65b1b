"""refold.client"""

from __future__ import annotations
