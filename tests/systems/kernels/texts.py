"""Kernels as text, small enough to read."""

import numpy as np

from windtunnel.systems.kernels.cases import Case, Out
from windtunnel.systems.kernels.model import Kernel, kernel_of

SCALE = """
define void @scale(ptr %x, ptr %y, i64 %n) {
entry:
  %some = icmp sgt i64 %n, 0
  br i1 %some, label %loop, label %end
loop:
  %i = phi i64 [ 0, %entry ], [ %next, %loop ]
  %from = getelementptr float, ptr %x, i64 %i
  %value = load float, ptr %from, align 4
  %twice = fmul float %value, 2.0
  %capped = call float @llvm.minnum.f32(float %twice, float 1000.0)
  %to = getelementptr float, ptr %y, i64 %i
  store float %capped, ptr %to, align 4
  %next = add nuw nsw i64 %i, 1
  %done = icmp eq i64 %next, %n
  br i1 %done, label %end, label %loop
end:
  ret void
}
declare float @llvm.minnum.f32(float, float)
"""
"""y = min(2 x, 1000): the clamp is never needed for small x."""


def scale_cases(split: str) -> list[Case]:
    draw = np.random.default_rng(0 if split == "fitness" else 1)
    sizes = (4000,) if split == "fitness" else (4001, 7)
    return [Case(f"{split} {n}", (draw.normal(size=n).astype(np.float32), Out((n,)), n)) for n in sizes]


def scale_kernel() -> Kernel:
    return kernel_of(SCALE, scale_cases)
