"""The machine instruction that numba has no name for.

In: an array and an index. Out: nothing but time saved. Not here: deciding what will be needed (``event_engine.py``).
"""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

_READ, _KEEP, _DATA = 0, 3, 1  # arguments of llvm.prefetch: to read, keep in all caches, not code


def _prefetch(_typing: Any, array: Any, _index: Any) -> Any:
    """Say to numba which machine code ``prefetch(array, index)`` is."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        data = context.make_array(signature.args[0])(context, builder, arguments[0]).data
        byte, flag = ir.IntType(8).as_pointer(), ir.IntType(32)
        kind = ir.FunctionType(ir.VoidType(), [byte, flag, flag, flag])
        instruction = cgutils.get_or_insert_function(builder.module, kind, "llvm.prefetch.p0")
        address = builder.bitcast(builder.gep(data, [arguments[1]]), byte)
        builder.call(instruction, [address, flag(_READ), flag(_KEEP), flag(_DATA)])
        return context.get_dummy_value()

    return types.void(array, types.uint64), generate


# prefetch(array, index) asks memory for an element without waiting for it; an index beyond the end does no harm
prefetch: Any = intrinsic(_prefetch)
