"""Programs that are compiled: what a capture sees of their regions, and what what-ifs answer about them."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
import torch
from torch import nn

import windtunnel as wt
from windtunnel.cost.rerun import Form
from windtunnel.cost.rerun.form import require_uncompiled
from windtunnel.cost.rerun.program import program_of
from windtunnel.errors import InEffectError, NotApplicableError, PriceError
from windtunnel.graph import Graph, Kind, Phase
from windtunnel.sources.torch.annotate import Discovery, is_compiling, module_paths
from windtunnel.sources.torch.compile_boundaries import aside, exclude_from_compilation, run_eagerly
from windtunnel.sources.torch.compiled import CompiledRegions, Mode
from windtunnel.sources.torch.kernels import describe_kernel, kernel_accesses, kernel_name

GENERATED = """
cpp_fused_add_gelu_0 = async_compile.cpp_pybinding(['float*', 'const float*', 'float*', 'const int64_t'], r'''
#include <torch/csrc/inductor/cpp_prefix.h>
extern "C"  void  kernel(float* in_out_ptr0,
                       const float* in_ptr0,
                       float* out_ptr1,
                       const int64_t ks0)
{
}
''')
"""


@pytest.fixture
def regions() -> Iterator[CompiledRegions]:
    torch._dynamo.reset()
    seen = CompiledRegions()
    seen.install()
    yield seen
    seen.remove()
    torch._dynamo.reset()


def step_of(model: nn.Module, compiled: Callable[..., torch.Tensor]) -> Callable[[], None]:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    x, y = torch.randn(16, 8), torch.randint(4, (16,))

    def step() -> None:
        loss = nn.functional.cross_entropy(compiled(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()

    return step


class Doubled(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(8, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return 2 * self.inner(x)


def network() -> nn.Sequential:
    return nn.Sequential(nn.Linear(8, 32), nn.GELU(), nn.Linear(32, 4))


def test_a_kernel_says_what_it_does_with_every_argument():
    assert {"cpp_fused_add_gelu_0": "brw-"} == kernel_accesses(GENERATED)


def test_a_marked_kernel_reads_and_writes_its_tensors():
    tensors = [[number, 10 + number, 0, 64, 4, "cpu"] for number in range(3)]
    shapes = [[8, 8]] * 3
    operator = describe_kernel(
        {
            "name": "wt:kernel:cpp_fused_add_gelu_0:brw-",
            "inputs": {"values": tensors, "shapes": shapes, "types": ["Tensor(float)"] * 3, "strides": [[8, 1]] * 3},
        }
    )

    assert [10, 11] == [span.storage for span in operator.reads]
    assert [10, 12] == [span.storage for span in operator.mutates]
    assert 2 * 64 == operator.flops


def test_a_kernel_is_named_as_the_compiler_names_it_and_others_keep_their_names():
    assert "cpp_fused_add_0" == kernel_name("wt:kernel:cpp_fused_add_0:rw")
    assert "aten::mm" == kernel_name("aten::mm")


def test_a_region_computes_the_same_compiled_marked_and_operator_by_operator(regions):
    model = network()
    compiled = torch.compile(model, backend="aot_eager")
    x = torch.randn(4, 8)
    expected = model(x)

    for mode in Mode:
        regions.set_mode(mode)
        torch.testing.assert_close(expected, compiled(x))
    assert 1 == len(regions)
    assert [] == regions.failures


def test_looking_at_regions_compiles_nothing_anew(regions):
    model = network()
    compiled = torch.compile(model, backend="aot_eager")
    x = torch.randn(4, 8)
    compiled(x)
    regions.learn(Discovery().add([model], ()), module_paths([model]))
    for mode in (Mode.MARKED, Mode.UNCOMPILED, Mode.BARE):
        regions.set_mode(mode)
        compiled(x)
    with run_eagerly():
        compiled(x)
    compiled(x)

    assert 1 == len(regions)


def test_modules_within_a_region_are_known_and_those_around_it_may_be_hooked(regions):
    model = nn.Sequential(Doubled(), nn.GELU())
    model[0].compile(backend="aot_eager")
    model(torch.randn(4, 8))
    paths = module_paths([model])
    regions.learn(Discovery().add([model], ()), paths)

    assert {id(model[0]), id(model[0].inner)} == regions.modules_in_regions(paths)


@pytest.mark.parametrize("is_whole", [False, True])
def test_a_program_that_compiles_is_known_as_one_until_it_runs_uncompiled(regions, is_whole):
    model = network()
    compiled = torch.compile(model, backend="aot_eager", fullgraph=is_whole)
    compiled(torch.randn(4, 8))

    assert is_compiling()
    with run_eagerly():
        assert not is_compiling()


def test_what_stands_aside_of_a_compiler_is_not_traced(regions):
    seen: list[bool] = []

    def act(number: int, call: Callable[[], None]) -> None:
        seen.append(torch.compiler.is_compiling())
        call()

    def hooked(value: torch.Tensor) -> torch.Tensor:
        aside(act, 1, lambda: None)
        return value + 1

    exclude_from_compilation(hooked)
    compiled = torch.compile(lambda value: hooked(value * 2), backend="aot_eager")
    exclude_from_compilation(hooked)

    assert 5.0 == compiled(torch.tensor(2.0)).item()
    assert [False] == seen


@pytest.fixture(scope="module")
def captured() -> Iterator[Graph]:
    """A step whose model is compiled by a backend that generates no code, so that nothing is built."""
    torch._dynamo.reset()
    torch.manual_seed(0)
    model = network()
    yield wt.capture(step_of(model, torch.compile(model, backend="aot_eager")), iterations=4, model=model)
    torch._dynamo.reset()


def test_a_compiled_step_has_its_phases(captured):
    share = {phase: captured.duration_ns[captured.select(phase=phase)].sum() for phase in Phase}

    assert min(share[Phase.FORWARD], share[Phase.BACKWARD], share[Phase.UPDATE]) > 0
    assert 0 == captured.select(phase=Phase.OTHER, kind=Kind.COMPUTE).sum()


def test_a_compiled_step_has_one_form(captured):
    """The iteration in which memory is learnt runs uncompiled: it was taken for a second form, without any calls."""
    assert not captured.meta.shapes


def test_the_program_of_a_compiled_step_is_its_operators_with_their_layers(captured):
    program = program_of(captured)
    ((first, last),) = program.compiled
    rows = [(call.operator, call.layer) for call in program.calls[first:last]]

    assert [("aten::linear", "0"), ("aten::gelu", "1"), ("aten::linear", "2")] == rows


def test_memory_of_a_compiled_step_is_followed(captured):
    assert captured.meta.memory["peak_bytes"] > captured.meta.memory_base_bytes > 0


def test_compiling_what_is_compiled_is_in_effect_already(captured):
    (answer,) = wt.whatif(captured, "compile-block")

    assert "already in effect" == answer.status


def test_a_form_that_changes_single_calls_of_compiled_code_is_declined():
    with pytest.raises(InEffectError):
        require_uncompiled([(2, 9)], Form(compiled=((3, 5),)))
    with pytest.raises(NotApplicableError, match="compiled as a whole"):
        require_uncompiled([(2, 9)], Form(checkpointed=((3, 5),)))
    require_uncompiled([(2, 9)], Form(checkpointed=((9, 12),), autocast="bfloat16"))


def test_a_step_compiled_before_anybody_looked_declines_what_it_does_not_know():
    torch._dynamo.reset()
    model = network()
    step = step_of(model, torch.compile(model, backend="aot_eager"))
    step()
    graph = wt.capture(step, iterations=2, model=model)
    torch._dynamo.reset()

    assert graph.select(phase=Phase.FORWARD, kind=Kind.COMPUTE).any()
    with pytest.raises(PriceError, match="compiled code"):
        program_of(graph)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:.*script_method:DeprecationWarning")  # of what Inductor imports
def test_kernels_that_inductor_generates_are_tasks(tmp_path, monkeypatch):
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path))
    torch._dynamo.reset()
    model = network()
    graph = wt.capture(step_of(model, torch.compile(model)), iterations=2, model=model)
    torch._dynamo.reset()
    kernels = graph.select(name="cpp_fused.*", kind=Kind.COMPUTE)

    assert (kernels & graph.select(phase=Phase.FORWARD)).any()
    assert (kernels & graph.select(phase=Phase.BACKWARD)).any()
    assert (graph.tasks["bytes_written"][kernels] > 0).all()
