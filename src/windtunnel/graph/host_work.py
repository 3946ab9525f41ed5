"""Names of what a host does for a device in graphs that were never run.

In: nothing. Out: the names, which sources write and prices read. Not here: names of kernels (``kernel_classes``).
"""

from __future__ import annotations

__all__ = ["DEVICE_READ", "HOST_CODE", "LOADED", "MEMCPY", "NON_BLOCKING", "READ"]

MEMCPY = "Memcpy HtoD ({} -> Device)"
"""A copy to the device, from ``Pageable`` or ``Pinned`` memory."""
NON_BLOCKING = " non-blocking"
"""How the name of a copy ends for which no thread waits."""
READ = "aten::_local_scalar_dense"
"""A number that Python reads, wherever it lies."""
DEVICE_READ = f"{READ}#device"
"""One that lies on the device."""
HOST_CODE = "host code#"
"""How Python and NumPy between two operators are called, where they take long; nanoseconds follow."""
LOADED = "batch from workers#"
"""How a batch is called that a loader's workers made; the number of its tensors follows."""
