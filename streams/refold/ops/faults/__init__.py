"""``refold verify faults``: one fault of the surroundings at a time, then the comparison with the oracle.

:mod:`scenario` is what a scenario is and what it is given; :mod:`catalog` lists them; :mod:`run` plays them.
The faults: :mod:`network` (through :mod:`proxy`), :mod:`disks`, :mod:`clocks`, :mod:`transactions`,
:mod:`leaders`, :mod:`deaths`.
"""

from __future__ import annotations
