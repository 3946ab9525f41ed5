"""Schedules for GPUs: they become CUDA, ask for no more than a GPU has, and compute what their task says.

Without a GPU their loops over threads are run one after another on the CPU: a schedule that is right for every order
of its threads is right for that one; and CUDA's own compiler, where it is there, takes the code.
"""

from __future__ import annotations

import os
import re
import shutil

import numpy as np
import pytest

from tests.systems.tensor_programs.model.golden_nests import statement_features
from tests.systems.tensor_programs.run.examples import SMALL
from windtunnel.systems.tensor_programs.model.features import FEATURE_NAMES
from windtunnel.systems.tensor_programs.model.nest import For, stores
from windtunnel.systems.tensor_programs.run.tasks import Task

pytest.importorskip("tvm")

import tvm

from windtunnel.systems.tensor_programs.run import build
from windtunnel.systems.tensor_programs.run.build import CUDA, arguments_of, compiled, gpu, parse_target
from windtunnel.systems.tensor_programs.run.devices import GPU_TILES, gpu_product_steps
from windtunnel.systems.tensor_programs.run.gpu_sampling import NUM_THREADS, sample_gpu
from windtunnel.systems.tensor_programs.run.nests import fits_gpu, nest_of
from windtunnel.systems.tensor_programs.run.schedules import THREADS, Scheduled, replay, to_rows
from windtunnel.systems.tensor_programs.run.worker import MAX_LEAVES, Worker

ARCH = "sm_90"


def serial(module):
    """The same program with its threads one after another, and all temporaries in memory."""
    text = re.sub(r'T\.thread_binding\((\d+), thread="[^"]*"', r"T.serial(\1", module.script())
    return tvm.script.from_source(re.sub(r'scope="(shared|local)"', 'scope="global"', text))


def source_of(module):
    return compiled(module, "cuda", ARCH).mod.imports[0].inspect_source()


@pytest.mark.parametrize("task", SMALL, ids=lambda task: task.kind)
def test_every_kind_is_a_kernel_that_computes_its_task(task):
    seed = next(seed for seed in range(8) if fits_gpu(sample_gpu(task, seed).module))
    drawn = sample_gpu(task, seed)

    assert drawn.is_gpu
    assert "__global__" in source_of(drawn.module)
    values, expected = arguments_of(task)
    build.build(serial(drawn.module), "sse4.2", values, expected)  # raises where the result is wrong


@pytest.mark.slow
@pytest.mark.parametrize("task", SMALL, ids=lambda task: task.kind)
def test_random_schedules_compute_their_task_and_come_again_from_their_rows(task):
    values, expected = arguments_of(task)
    num_fitting = 0
    for seed in range(20, 40):
        drawn = sample_gpu(task, seed)
        assert replay(task, to_rows(drawn.steps)).module.script() == drawn.module.script()
        if fits_gpu(drawn.module):
            num_fitting += 1
            build.build(serial(drawn.module), "avx2", values, expected)
            source_of(drawn.module)
    assert num_fitting >= 15


def test_a_nest_has_the_indices_of_the_gpu():
    task = Task("matmul", {"m": 256, "n": 256, "k": 128})
    drawn = next(one for one in (sample_gpu(task, seed) for seed in range(20)) if has_shared(one))

    nest = nest_of(drawn.module, is_gpu=True)
    rows = dict(zip(FEATURE_NAMES, statement_features(nest).T, strict=True))

    assert nest.is_gpu
    loops, node = {}, nest.body[0]
    while isinstance(node, For) and node.kind == "thread":
        loops[node.thread] = node.extent
        node = node.body[0]
    assert {"blockIdx.x", "threadIdx.x"} <= loops.keys()
    assert loops["threadIdx.x"] <= max(NUM_THREADS)
    assert rows["is_gpu"].min() > 0
    np.testing.assert_allclose(rows["threadIdx_x_len"], np.log2(1 + loops["threadIdx.x"]), rtol=1e-6)
    shared = [store.buffer for store in stores(nest.body) if store.buffer.endswith("_shared")]
    assert shared


def has_shared(drawn):
    return fits_gpu(drawn.module) and any(step.block.endswith("_shared") for step in drawn.steps)


def test_what_no_gpu_has_is_seen():
    task = Task("matmul", {"m": 4096, "n": 4096, "k": 64})
    drawn = Scheduled.of(task)
    for primitive, block, *arguments in (
        ("split", "main", 0, 2048),
        ("parallel", "main", 0, THREADS.index("blockIdx.x")),
        ("parallel", "main", 1, THREADS.index("threadIdx.x")),
    ):
        assert drawn.try_step(primitive, block, *arguments)

    assert not fits_gpu(drawn.module)


@pytest.mark.parametrize("tile", GPU_TILES)
def test_the_product_that_measures_a_gpu_is_right(tile):
    task = Task("matmul", {"m": 256, "n": 256, "k": 64})
    drawn = Scheduled.of(task)
    for step in gpu_product_steps(*tile):
        assert drawn.try_step(step.primitive, step.block, *step.arguments), step

    assert fits_gpu(drawn.module)
    values, expected = arguments_of(task)
    build.build(serial(drawn.module), "sse4.2", values, expected)


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("nvcc") is None, reason="nvcc is not installed")
def test_cudas_own_compiler_takes_the_code():
    from tvm.support import nvcc

    for kind in ("matmul", "conv2d", "softmax", "layer_norm", "elementwise"):
        task = next(task for task in SMALL if task.kind == kind)
        drawn = next(one for one in (sample_gpu(task, seed) for seed in range(8)) if fits_gpu(one.module))
        with tvm.target.Target({"kind": "cuda", "arch": ARCH}):
            code = nvcc.compile_cuda(source_of(drawn.module), "ptx", arch=ARCH, compiler="nvcc")
        assert b".entry" in bytes(code)


def test_a_process_draws_for_a_gpu():
    from windtunnel.systems.tensor_programs.run import worker

    state = worker._State(tuple(os.sched_getaffinity(0)))
    drawn = worker._draw(state, 0, SMALL[0], 5, is_gpu=True)

    assert 1 <= len(drawn.leaf_pos) <= MAX_LEAVES
    assert replay(SMALL[0], drawn.sched).is_gpu


@pytest.mark.slow
def test_programs_run_on_the_gpu_of_this_host():
    if not gpu().exist:
        pytest.skip("this host has no GPU that the compiler's runtime can use")
    with Worker(0) as process:
        for key, task in enumerate(SMALL):
            process.ask("draw", key, task, 11, True)
            process.ask("build", key, task, ["cuda"])  # checks the result
            assert min(look.program_s for look in process.ask("time", key, "cuda", 0)) > 0
        assert process.ask("describe", CUDA.isa, CUDA.num_threads)["peak_flops_per_s"] > 1e12
    assert parse_target("cuda") == CUDA
