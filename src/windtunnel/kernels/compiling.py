"""A module made faster by the compiler and turned into code of this process (room kernels).

In: text of a module. Out: a module of llvmlite, or the address of its function. Every engine gets a target machine of
its own: one that two engines share is freed twice. Not here: calling what came out (``_child``).
"""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass
from functools import cache
from typing import Any

import llvmlite.binding as llvm

from windtunnel.errors import InputError

__all__ = ["Code", "compiled", "digest", "optimize", "read_module", "simplified"]


@cache
def _ready() -> None:
    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()


@dataclass
class Code:
    """A function of this process; it lives as long as this does."""

    address: int
    engine: Any


def read_module(text: str) -> Any:
    """Parse and verify.

    Raises
    ------
    InputError
        It is no valid module; names the line.
    """
    _ready()
    try:
        module = llvm.parse_assembly(text)
        module.verify()
    except RuntimeError as error:
        said = str(error).strip().splitlines()
        line = re.search(r"<string>:(\d+):", said[-1] if said else "") or re.search(r"<string>:(\d+):", str(error))
        words = next((one for one in said if "error:" in one), said[0] if said else "")
        raise InputError(
            f"this is no valid LLVM IR: {words.split('error:')[-1].strip()}",
            where=f"line {line.group(1)}" if line else (said[-1].strip() if len(said) > 1 else ""),
            fix="take the text as a compiler prints it; opt -passes=verify says more",
        ) from error
    return module


def _machine(level: int = 3) -> Any:
    _ready()
    target = llvm.Target.from_default_triple()
    return target.create_target_machine(
        cpu=llvm.get_host_cpu_name(), features=llvm.get_host_cpu_features().flatten(), opt=level, jit=True,
        codemodel="jitdefault",
    )  # fmt: skip


def optimize(module: Any, *, is_widened: bool = True, strips_names: bool = False) -> None:
    """All that the compiler does at its highest level for this processor; without widening, no vectors or unrolling."""
    options = llvm.create_pipeline_tuning_options(speed_level=3)
    options.loop_vectorization = options.slp_vectorization = is_widened
    options.loop_unrolling = options.loop_interleaving = is_widened
    builder = llvm.create_pass_builder(_machine(), options)
    passes = builder.getModulePassManager()
    if strips_names:
        passes.add_strip_symbols_pass()
    passes.run(module, builder)


def simplified(text: str) -> str:
    """The module after everything that leaves loops as they are written.

    Raises
    ------
    InputError
        It is no valid module.
    """
    module = read_module(text)
    optimize(module, is_widened=False)
    return str(module)


def digest(module: Any) -> str:
    """A short name of what a module says; to be taken once names of values are stripped."""
    return hashlib.sha256(str(module).encode()).hexdigest()[:24]


def compiled(module: Any, name: str, *, level: int = 3) -> Code:
    """Code of the module's function; at level 0 it is made quickly and runs slowly."""
    engine = llvm.create_mcjit_compiler(module, _machine(level))
    engine.finalize_object()
    return Code(engine.get_function_address(name), engine)
