"""refold.integrations"""

from __future__ import annotations
