"""How a service that serves has its memory managed: Python's search for cycles, and glibc's heaps.

Where there is no glibc, what is asked of it is passed over.
"""

import ctypes
import gc
from typing import Final

# Of glibc's <malloc.h>.
_M_ARENA_MAX: Final = -8
# Python's lock keeps threads from allocating at the same moment, so a heap for each would only be more to keep.
_HEAPS: Final = 1
# How many more objects are made than given up until cycles are looked for among the youngest.
_YOUNG: Final = 20_000


def share_heap() -> None:
    """Have all threads share one heap. To be called before there are threads."""
    if tune := getattr(ctypes.CDLL(None), "mallopt", None):
        tune(_M_ARENA_MAX, _HEAPS)


def settle() -> None:
    """Take what was made until now, and stays, out of every later search for cycles; give back what is free.

    A search through all of it takes some 40 ms, in which nothing is answered.
    """
    gc.freeze()
    gc.set_threshold(_YOUNG, *gc.get_threshold()[1:])
    if trim := getattr(ctypes.CDLL(None), "malloc_trim", None):
        trim(0)
