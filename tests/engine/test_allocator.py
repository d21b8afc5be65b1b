"""Freed buffers go back to the system, also after one of many megabytes was freed (what glibc forgets)."""

from __future__ import annotations

import ctypes
import os
import subprocess
import sys

import pytest

from refold.engine import allocator

#: Free a large buffer, as librdkafka does with its first fetch, then see where a smaller one comes from.
PROGRAM = """
import ctypes, sys
from refold.engine import allocator
libc = ctypes.CDLL(None)
names = "arena ordblks smblks hblks hblkhd usmblks fsmblks uordblks fordblks keepcost".split()
class Info(ctypes.Structure):
    _fields_ = [(name, ctypes.c_size_t) for name in names]
libc.mallinfo2.restype, libc.malloc.restype = Info, ctypes.c_void_p
libc.malloc.argtypes, libc.free.argtypes = [ctypes.c_size_t], [ctypes.c_void_p]
fixed = sys.argv[1] == "fixed" and allocator.give_back()
libc.free(libc.malloc(16 << 20))
before = libc.mallinfo2().hblks
kept = libc.malloc(3 << 20)
mapped = libc.mallinfo2().hblks - before
for place in [libc.malloc(1 << 20) for _ in range(16)]:
    libc.free(place)
print(fixed, mapped, libc.mallinfo2().keepcost > allocator.TRIM_THRESHOLD_BYTES)
"""


def run(how: str, **more: str) -> str:
    environment = {name: value for name, value in os.environ.items() if name not in allocator.VARIABLES}
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, how],
        env={**environment, **more},
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    return done.stdout.strip()


@pytest.fixture(autouse=True)
def glibc() -> None:
    if not hasattr(ctypes.CDLL(None), "mallinfo2"):
        pytest.skip("not glibc from 2.33 on: there is no way to look")


def test_buffers_have_mappings_of_their_own_whatever_was_freed_before() -> None:
    """As glibc is, the second buffer comes from the heap, and all that is freed at the heap's end stays there
    (the control); with fixed thresholds not."""
    assert run("as is") == "False 0 True"
    assert run("fixed") == "True 1 False"


def test_an_operator_s_own_settings_stand() -> None:
    """Where the environment says something of the allocator, nothing is changed."""
    assert run("fixed", MALLOC_MMAP_THRESHOLD_=str(4 << 20)).startswith("False 0 ")
