"""Kernels of GPUs: read, edited and made into PTX anywhere; judged by the same rules, threads emulated."""

import ctypes
import pickle

import pytest

pytest.importorskip("llvmlite")

from tests.systems.kernels.gpu_texts import MIRROR, SCALE, Emulated, mirror_kernel, scale_cases, scale_kernel
from windtunnel.errors import InputError, NotApplicableError
from windtunnel.hardware import machine
from windtunnel.measure import cuda
from windtunnel.measure.cuda import DeviceArray, Launch
from windtunnel.measure.sandbox import Limits, run_in_fork
from windtunnel.systems.kernels.candidate_process import evaluate, golden
from windtunnel.systems.kernels.cases import load_cases
from windtunnel.systems.kernels.compiling import ptx_of, read_module
from windtunnel.systems.kernels.edits import apply
from windtunnel.systems.kernels.evolving import evolve_kernel
from windtunnel.systems.kernels.fuzz import fuzz_cases
from windtunnel.systems.kernels.ir import parse
from windtunnel.systems.kernels.model import Evaluation
from windtunnel.systems.kernels.search import Options, evolve
from windtunnel.systems.kernels.validation import is_same

HAS_GPU = any(one.kind == "gpu" for one in machine().devices)


def barriers(function):
    return [one.uid for one in function.instructions() if "barrier" in one.callee]


def test_what_a_gpu_is_asked_to_run_stays_that_through_the_model():
    kernel = mirror_kernel()
    ptx = ptx_of(read_module(kernel.function.render()), "sm_80")

    assert kernel.is_for_gpu
    assert ".visible .entry mirror(" in ptx
    assert ".shared .align 4 .b8 tile[1024]" in ptx
    assert 2 == ptx.count("bar.sync") + ptx.count("barrier.sync")
    assert ".target sm_80" in ptx


def test_a_barrier_can_be_taken_away_but_no_proof_is_claimed_for_it():
    function = mirror_kernel().function
    edited = apply(function, [(("-c", barriers(function)[0]),)])
    ptx = ptx_of(read_module(edited.render()))

    assert 1 == ptx.count("bar.sync") + ptx.count("barrier.sync")
    assert is_same(function, function)
    assert not is_same(function, edited)


def test_pointers_keep_the_memory_that_they_point_into():
    function = parse(SCALE)
    pointers = {one.type for one in function.instructions() if one.opcode == "getelementptr"}

    assert {"ptr addrspace(1)"} == pointers


def answer(origin, edits):
    """Kind and error of a candidate, in a process that may die of it."""
    text = apply(scale_kernel().function, edits).render()
    ending = run_in_fork(lambda lock: evaluate(origin, text, set(), 0.0, 1, lock), Limits())
    return pickle.loads(ending.answer)[:2] if ending.kind == "done" else (ending.kind, float("inf"))


def test_candidates_are_judged_as_those_of_processors_are():
    kernel = scale_kernel()
    origin = golden(kernel.function, kernel.raw, kernel.cases("fitness"), (), Emulated())
    clamp = next(one.uid for one in kernel.function.instructions() if "minnum" in one.callee)
    twice = next(one.uid for one in kernel.function.instructions() if one.opcode.startswith("f"))
    drop = ((("-c", clamp), ("-p", f"{store(kernel)}.OP0,{twice}")),)

    assert "ok" == answer(origin, ())[0]
    assert "ok" == answer(origin, drop)[0]
    assert "wrong" == answer(origin, ((("-c", store(kernel)),),))[0]


def store(kernel):
    return next(one.uid for one in kernel.function.instructions() if one.opcode == "store")


def test_a_search_goes_the_same_way():
    kernel = scale_kernel()
    origin = golden(kernel.function, kernel.raw, kernel.cases("fitness"), (), Emulated())
    kinds = set()

    def one(edits):
        kind, error = answer(origin, edits)
        kinds.add(kind)
        return Evaluation(kind, 1.0 if kind == "ok" else float("inf"), error)

    evolve(kernel.function, lambda sets: [one(edits) for edits in sets], Options(4, 1, operators="cp", seed=3))

    assert {"ok", "wrong"} <= kinds


def test_drawn_inputs_run_on_as_many_threads():
    case = scale_cases("fitness")[0]

    assert {case.launch} == {one.launch for one in fuzz_cases([case], 0)}


@pytest.mark.parametrize(("said", "launch"), [
    ("(4, 256)", Launch((4, 1, 1), (256, 1, 1))),
    ("((2, 3), (16, 16), 512)", Launch((2, 3, 1), (16, 16, 1), 512)),
])  # fmt: skip
def test_tests_say_how_many_threads_run(tmp_path, said, launch):
    path = tmp_path / "tests.py"
    path.write_text(f"def cases(split):\n    return [(1,)]\ndef launch(n):\n    return {said}\n")

    assert launch == load_cases(path)("fitness")[0].launch


@pytest.mark.parametrize("said", ["(4,)", "(0, 256)", "(4, 'many')", "((1, 1, 1, 1), 2)", "(1, 1, -4)"])
def test_threads_that_cannot_be_are_refused(tmp_path, said):
    path = tmp_path / "tests.py"
    path.write_text(f"def cases(split):\n    return [(1,)]\ndef launch(n):\n    return {said}\n")
    with pytest.raises(InputError, match="launch gives"):
        load_cases(path)("fitness")


def test_other_globals_than_shared_memory_are_refused():
    with pytest.raises(InputError, match="the global @tile"):
        parse(MIRROR.replace("addrspace(3)", "addrspace(1)"))


@pytest.mark.skipif(HAS_GPU, reason="this host has a GPU")
def test_without_a_gpu_its_kernels_are_refused():
    with pytest.raises(NotApplicableError, match="there is no GPU here to evolve scale on"):
        evolve_kernel(scale_kernel(), Options(4, 0))


def test_without_a_driver_that_is_said(monkeypatch):
    monkeypatch.setattr(cuda, "_LIBRARY", "libnobody-has-this.so.1")
    with pytest.raises(NotApplicableError, match="no driver of a GPU"):
        cuda.Driver()


class Memory:
    """A device's memory that is this process's."""

    def __init__(self):
        self.kept = {}

    def allocate(self, size_bytes):
        buffer = ctypes.create_string_buffer(size_bytes)
        address = ctypes.addressof(buffer)
        self.kept[address] = buffer
        return address

    def put(self, address, values):
        ctypes.memmove(address, values.ctypes.data, values.nbytes)

    def get(self, address, values):
        ctypes.memmove(values.ctypes.data, address, values.nbytes)


def test_an_array_of_a_device_is_the_same_on_both_sides_and_tells_who_wrote_beside_it():
    array = DeviceArray(Memory(), (5,), "float32")
    array.array[:] = range(5)
    array.push()
    array.array[:] = 0
    array.pull()

    assert [0, 1, 2, 3, 4] == array.array.tolist()
    assert array.is_intact()
    ctypes.c_char.from_address(array.address + 20).value = b"x"
    array.pull()
    assert not array.is_intact()
    array.push()
    array.pull()
    assert array.is_intact()


@pytest.mark.skipif(not HAS_GPU, reason="there is no GPU here")
def test_a_kernel_really_runs_on_the_gpu():
    result = evolve_kernel(scale_kernel(), Options(8, 1), allowed="tests")

    assert "crash" not in result.counts
    assert result.counts["ok"] > 0
