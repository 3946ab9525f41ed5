"""Training steps as genomes: read, edited by the same edits, run again to the same bits."""

import pytest

pytest.importorskip("torch")

from windtunnel.errors import NotApplicableError
from windtunnel.systems.kernels.edits import apply
from windtunnel.systems.kernels.search import Options
from windtunnel.systems.kernels.steps.model import inputs_of, predict_time_ratio, step_of
from windtunnel.systems.kernels.steps.run import OPERATORS, evolve_step

SMALL = {"batch_size": 4, "width": 8, "depth": 2}


@pytest.fixture(scope="module")
def small():
    return step_of("mlp", SMALL)


def run(step, workload, function, seed=0):
    import torch

    tensors = [one.detach() for one in inputs_of(workload, seed)]
    with torch.no_grad():
        return step.program(function)(*tensors)


def test_a_step_that_was_read_computes_loss_and_gradients_as_torch_does(small):
    import torch

    step, workload = small
    loss, *gradients = run(step, workload, step.function)
    inputs, target = workload.supervised.draw()
    expected = workload.supervised.loss(workload.model(*inputs), target)
    expected.backward()

    assert torch.equal(loss, expected)
    assert all(torch.equal(one, other.grad) for one, other in zip(gradients, workload.model.parameters(), strict=True))


def test_operators_that_only_pass_a_value_on_can_be_skipped(small):
    import torch

    step, workload = small
    skip = next(one for one in step.function.instructions() if "detach" in one.opcode)
    source = skip.operands[0].uid
    uses = [("-p", f"{user.uid}.OP{at},{source}") for user in step.function.instructions()
            for at, value in enumerate(user.operands) if value.uid == skip.uid]  # fmt: skip
    changed = apply(step.function, [(("-c", skip.uid), *uses)])
    same = [torch.equal(one, other) for one, other in
            zip(run(step, workload, changed), run(step, workload, step.function), strict=True)]  # fmt: skip

    assert all(same)
    assert skip.uid not in step.list_needed_instructions(changed)
    assert predict_time_ratio(step, changed, dict.fromkeys(step.list_needed_instructions(step.function), 10.0)) < 1


def test_what_nobody_uses_is_not_run(small):
    step, _ = small
    last = list(step.function.instructions())[-1]  # the loss, then the gradients
    changed = apply(step.function, [(("-p", f"{last.uid}.OP1,C1"),)])

    assert len(step.list_needed_instructions(changed)) < len(step.list_needed_instructions(step.function))


def test_a_step_that_is_more_than_model_and_loss_is_refused():
    with pytest.raises(NotApplicableError, match="more than a model and a loss"):
        step_of("lstm")


@pytest.mark.slow
def test_a_search_over_a_step_keeps_every_bit():
    found = evolve_step("mlp", Options(4, 1, operators=OPERATORS), parameters=SMALL, num_workers=1)

    assert found.num_left <= found.num_operators
    assert sum(found.counts.values()) > 20
    assert found.measured.low >= 1
