"""Keep the C allocator in one state while we measure.

In: nothing. Out: a process whose heap no longer shrinks. glibc gives freed memory at the top of the heap back to
the kernel and takes it again in the next iteration, page fault by page fault; whether it does hangs on what else
happens to lie at the top. A training step can be a quarter slower for it, and a profiler that allocates anything
switches it off or on. So runs that are to be compared hold the heap; what it cost before is measured and told.
"""

from __future__ import annotations

import ctypes
import sys

__all__ = ["hold_heap", "page_faults"]

_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3
_NEVER, _LARGEST = 2**31 - 1, 32 * 1024 * 1024  # glibc refuses a larger threshold


def hold_heap() -> bool:
    """Tell the allocator to keep freed memory for the rest of this process; False where it has no such switch."""
    if not sys.platform.startswith("linux"):
        return False
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (AttributeError, OSError):
        return False
    return bool(mallopt(_M_TRIM_THRESHOLD, _NEVER)) and bool(mallopt(_M_MMAP_THRESHOLD, _LARGEST))


def page_faults() -> int:
    """Pages that the kernel has handed to this process so far without reading a disk."""
    try:
        import resource
    except ImportError:  # not a Unix
        return 0
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt
