"""refold.formats"""

from __future__ import annotations
