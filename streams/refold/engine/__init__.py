"""refold.engine"""

from __future__ import annotations
