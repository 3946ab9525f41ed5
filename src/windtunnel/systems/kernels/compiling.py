"""A module made faster by the compiler and turned into code.

In: text of a module, whose triple says for which machine: this processor, or a GPU. Out: a module of llvmlite, the
address of its function in this process, or PTX. Every engine gets a target machine of its own: one that two engines
share is freed twice. Not here: calling what came out (``candidate_process``).
"""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass
from functools import cache
from typing import Any

import llvmlite.binding as llvm

from windtunnel.errors import InputError, MissingExtraError

__all__ = ["GPU", "Code", "compile_module", "digest", "optimize", "ptx_of", "read_module", "simplify_module"]

GPU = "nvptx64"
"""How the triple of a module for a GPU begins."""
_CHIP = "sm_70"  # whose code all later ones run


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
        reported = str(error).strip().splitlines()
        line = re.search(r"<string>:(\d+):", reported[-1] if reported else "") or re.search(
            r"<string>:(\d+):", str(error)
        )
        words = next((item for item in reported if "error:" in item), reported[0] if reported else "")
        raise InputError(
            f"this is no valid LLVM IR: {words.split('error:')[-1].strip()}",
            where=f"line {line.group(1)}" if line else (reported[-1].strip() if len(reported) > 1 else ""),
            fix="take the text as a compiler prints it; opt -passes=verify says more",
        ) from error
    return module


@cache
def _gpu_ready() -> Any:
    """The target for GPUs.

    Raises
    ------
    MissingExtraError
        The compiler's library was built without it.
    """
    llvm.initialize_all_targets()
    llvm.initialize_all_asmprinters()
    try:
        return llvm.Target.from_triple(f"{GPU}-nvidia-cuda")
    except RuntimeError as error:
        raise MissingExtraError(f"llvmlite was built without the target {GPU}",
                                fix="install an llvmlite that has it") from error  # fmt: skip


def _machine_of(module: Any, chip: str = _CHIP) -> Any:
    """The target machine that a module is for; of a GPU, of such a chip."""
    if module.triple.startswith(GPU):
        return _gpu_ready().create_target_machine(cpu=chip, opt=3)
    return _machine()


def ptx_of(module: Any, chip: str = _CHIP) -> str:
    """PTX of a module for a GPU, of a chip such as sm_90; by default for all from sm_70 on.

    Raises
    ------
    InputError
        The compiler has no code for something in it.
    """
    try:
        text: str = _machine_of(module, chip).emit_assembly(module)
    except RuntimeError as error:
        raise InputError(f"the compiler makes no PTX of this module: {error}",
                         fix="a kernel of a GPU calls only what its instructions can do") from error  # fmt: skip
    return text


def _machine(level: int = 3) -> Any:
    _ready()
    target = llvm.Target.from_default_triple()
    return target.create_target_machine(
        cpu=llvm.get_host_cpu_name(), features=llvm.get_host_cpu_features().flatten(), opt=level, jit=True,
        codemodel="jitdefault",
    )  # fmt: skip


def optimize(module: Any, *, is_widened: bool = True, strips_names: bool = False) -> None:
    """Optimize a module at the highest level for its machine; unless ``is_widened``, loops are not vectorized."""
    options = llvm.create_pipeline_tuning_options(speed_level=3)
    options.loop_vectorization = options.slp_vectorization = is_widened
    options.loop_unrolling = options.loop_interleaving = is_widened
    builder = llvm.create_pass_builder(_machine_of(module), options)
    passes = builder.getModulePassManager()
    if strips_names:
        passes.add_strip_symbols_pass()
    passes.run(module, builder)


def simplify_module(text: str) -> str:
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


def compile_module(module: Any, name: str, *, level: int = 3) -> Code:
    """Code of the module's function; at level 0 it is made quickly and runs slowly."""
    engine = llvm.create_mcjit_compiler(module, _machine(level))
    engine.finalize_object()
    return Code(engine.get_function_address(name), engine)
