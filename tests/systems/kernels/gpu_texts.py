"""Kernels for a GPU as text, and a processor that runs those whose threads do not wait for one another."""

import ctypes
import itertools
import re
from functools import partial

import numpy as np

from windtunnel.measure.cuda import Launch
from windtunnel.systems.kernels.candidate_process import Host
from windtunnel.systems.kernels.cases import Case, Out
from windtunnel.systems.kernels.compiling import read_module
from windtunnel.systems.kernels.model import Kernel, kernel_of

SCALE = """
target triple = "nvptx64-nvidia-cuda"
declare i32 @llvm.nvvm.read.ptx.sreg.ctaid.x()
declare i32 @llvm.nvvm.read.ptx.sreg.ntid.x()
declare i32 @llvm.nvvm.read.ptx.sreg.tid.x()
declare float @llvm.minnum.f32(float, float)
define ptx_kernel void @scale(ptr addrspace(1) %x, ptr addrspace(1) %y, i64 %n) {
entry:
  %block = call i32 @llvm.nvvm.read.ptx.sreg.ctaid.x()
  %width = call i32 @llvm.nvvm.read.ptx.sreg.ntid.x()
  %thread = call i32 @llvm.nvvm.read.ptx.sreg.tid.x()
  %first = mul i32 %block, %width
  %at = add i32 %first, %thread
  %i = zext i32 %at to i64
  %inside = icmp slt i64 %i, %n
  br i1 %inside, label %work, label %end
work:
  %from = getelementptr float, ptr addrspace(1) %x, i64 %i
  %value = load float, ptr addrspace(1) %from, align 4
  %twice = fmul float %value, 2.0
  %capped = call float @llvm.minnum.f32(float %twice, float 1000.0)
  %to = getelementptr float, ptr addrspace(1) %y, i64 %i
  store float %capped, ptr addrspace(1) %to, align 4
  br label %end
end:
  ret void
}
"""
"""y = min(2 x, 1000), an element per thread."""

MIRROR = """
target triple = "nvptx64-nvidia-cuda"
@tile = internal addrspace(3) global [256 x float] undef, align 4
declare i32 @llvm.nvvm.read.ptx.sreg.ctaid.x()
declare i32 @llvm.nvvm.read.ptx.sreg.tid.x()
declare void @llvm.nvvm.barrier.cta.sync.aligned.all(i32)
define void @mirror(ptr %x, ptr %y) {
  %b = call i32 @llvm.nvvm.read.ptx.sreg.ctaid.x()
  %t = call i32 @llvm.nvvm.read.ptx.sreg.tid.x()
  %first = mul i32 %b, 256
  %at = add i32 %first, %t
  %i = zext i32 %at to i64
  %near = zext i32 %t to i64
  %from = getelementptr float, ptr %x, i64 %i
  %value = load float, ptr %from, align 4
  %place = getelementptr float, ptr addrspace(3) @tile, i64 %near
  store float %value, ptr addrspace(3) %place, align 4
  call void @llvm.nvvm.barrier.cta.sync.aligned.all(i32 0)
  call void @llvm.nvvm.barrier.cta.sync.aligned.all(i32 0)
  %other = sub i64 255, %near
  %there = getelementptr float, ptr addrspace(3) @tile, i64 %other
  %found = load float, ptr addrspace(3) %there, align 4
  %to = getelementptr float, ptr %y, i64 %i
  store float %found, ptr %to, align 4
  ret void
}
!nvvm.annotations = !{!0}
!0 = !{ptr @mirror, !"kernel", i32 1}
"""
"""Each block turns 256 numbers around in its shared memory; one of two barriers is enough."""


def scale_cases(split: str) -> list[Case]:
    draw = np.random.default_rng(0 if split == "fitness" else 1)
    launch = Launch((4, 1, 1), (256, 1, 1))
    return [Case(f"{split} {n}", (draw.normal(size=n).astype(np.float32), Out((n,)), n), launch) for n in (1000, 7)]


def mirror_cases(split: str) -> list[Case]:
    draw = np.random.default_rng(0 if split == "fitness" else 1)
    return [
        Case(f"{split} {n}", (draw.normal(size=256 * n).astype(np.float32), Out((256 * n,))),
             Launch((n, 1, 1), (256, 1, 1))) for n in (1, 8192)
    ]  # fmt: skip


def scale_kernel() -> Kernel:
    return kernel_of(SCALE, scale_cases)


def mirror_kernel() -> Kernel:
    return kernel_of(MIRROR, mirror_cases)


class Emulated(Host):
    """Threads one after the other, by code of this processor."""

    has_drafts = False

    def __init__(self) -> None:
        self.indices = {(name, axis): ctypes.c_int32() for name in ("ctaid", "ntid", "tid") for axis in "xyz"}

    def function(self, module, shape, *, is_draft=False):
        text = re.sub(r"^(target .*|declare .*nvvm.*)$", "", str(module), flags=re.MULTILINE)
        text = re.sub(r" addrspace\(\d\)|ptx_kernel ", "", text)
        text = re.sub(r"(?:tail )?call [^@\n]*i32 @llvm\.nvvm\.read\.ptx\.sreg\.(\w+)\.([xyz])\(\)", self._read, text)
        return super().function(read_module(text), shape, is_draft=is_draft)

    def _read(self, found):
        address = ctypes.addressof(self.indices[found.group(1), found.group(2)])
        return f"load volatile i32, ptr inttoptr (i64 {address} to ptr)"

    def bound(self, function, bench):
        return partial(self._run, function, bench.launch, bench.passed)

    def _run(self, function, launch, passed):
        for axis, width in zip("xyz", launch.threads, strict=True):
            self.indices["ntid", axis].value = width
        ranges = [range(number) for number in (*launch.blocks, *launch.threads)]
        names = [(name, axis) for name in ("ctaid", "tid") for axis in "xyz"]
        for place in itertools.product(*ranges):
            for name, value in zip(names, place, strict=True):
                self.indices[name].value = value
            function(*passed)
