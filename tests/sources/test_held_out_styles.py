"""Styles of training that ordinary loops do not have: steps that call back for the loss, transforms of torch.func."""

import pytest

from windtunnel.cost.rerun.optimizer import UpdateForm, measure_update, step_of
from windtunnel.errors import PriceError
from windtunnel.graph import Phase
from windtunnel.sources.memory.tracking import track_memory
from windtunnel.sources.torch.step import capture
from windtunnel.whatifs import whatif
from windtunnel.whatifs.measured import require_program

torch = pytest.importorskip("torch", reason="needs the extra torch")


WORK = ("aten::addmm", "aten::mm", "aten::_log_softmax", "aten::nll_loss_backward", "aten::addcdiv_")


def parts(optimizer, **options):
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(32, 64), torch.nn.ReLU(), torch.nn.Linear(64, 8))
    inputs, labels = torch.randn(64, 32), torch.randint(0, 8, (64,))
    return model, optimizer(model.parameters(), **options), inputs, labels


def plain_step():
    model, updater, inputs, labels = parts(torch.optim.Adam)

    def step():
        updater.zero_grad()
        torch.nn.functional.cross_entropy(model(inputs), labels).backward()
        updater.step()

    return step


def closure_step(optimizer=torch.optim.Adam, **options):
    model, updater, inputs, labels = parts(optimizer, **options)

    def closure():
        updater.zero_grad()
        loss = torch.nn.functional.cross_entropy(model(inputs), labels)
        loss.backward()
        return loss

    return lambda: updater.step(closure)


def functional_step():
    model, updater, inputs, labels = parts(torch.optim.SGD, lr=0.1)
    named = dict(model.named_parameters())

    def loss_of(weights):
        scores = torch.func.functional_call(model, weights, (inputs,))
        return torch.nn.functional.cross_entropy(scores, labels)

    def step():
        for name, gradient in torch.func.grad(loss_of)({name: one.detach() for name, one in named.items()}).items():
            named[name].grad = gradient
        updater.step()

    return step


@pytest.fixture(scope="module")
def closure_graph():
    return capture(closure_step(), iterations=4, warmup=2)


@pytest.fixture(scope="module")
def plain_graph():
    return capture(plain_step(), iterations=4, warmup=2)


def phases_of_work(graph):
    """The phases in which the operators that do the work run."""
    return {op: {Phase(int(one)).name for one in graph.tasks["phase"][graph.select(op=op)]} for op in WORK}


def test_a_step_that_calls_back_has_the_phases_of_one_that_does_not(closure_graph, plain_graph):
    assert phases_of_work(plain_graph) == phases_of_work(closure_graph)


def test_a_step_that_calls_back_is_the_same_program(closure_graph, plain_graph):
    programs = [require_program(graph) for graph in (plain_graph, closure_graph)]
    told = [[(call.mark or call.operator, call.layer, call.phase) for call in program.calls] for program in programs]

    assert told[0] == told[1]


def test_a_step_that_calls_back_can_be_asked_what_if(closure_graph):
    answers = whatif(closure_graph, ["amp", "fused-optimizer"], database=":memory:", budget_s=0.1)

    assert [True, True] == [answer.is_applicable for answer in answers]


def test_an_update_that_needs_the_loss_is_not_run_by_itself():
    graph = capture(closure_step(torch.optim.LBFGS, max_iter=2), iterations=2, warmup=1)

    with pytest.raises(PriceError, match="the step of LBFGS calls back for the loss"):
        measure_update(list(graph.meta.optimizers), UpdateForm(threads=1))


def test_what_an_optimizer_does_not_have_need_not_be_switched_off():
    """NAdam has a foreach implementation and no fused one."""
    options = {"class": "torch.optim.nadam.NAdam", "groups": [GROUP]}
    step_of(options, UpdateForm({"foreach": True, "fused": False}))()

    with pytest.raises(PriceError, match="NAdam has no option 'fused'"):
        step_of(options, UpdateForm({"fused": True, "foreach": False}))


GROUP = {"options": {"lr": 0.1}, "parameters": ["weight"], "shapes": [[4, 4]], "dtypes": ["float32"]}


def test_transforms_of_gradients_are_captured_and_their_memory_followed():
    graph = capture(functional_step(), iterations=2, warmup=1)

    assert graph.select(op="aten::addmm").sum() > 0
    assert graph.meta.memory["peak_bytes"] > 0


@pytest.mark.parametrize("nested", [False, True])
def test_hooks_on_saved_tensors_are_back_after_a_transform(nested):
    def step():
        weight, small = torch.ones(100_000, requires_grad=True), torch.ones(10)
        square = lambda x: (x * x).sum()  # noqa: E731
        inner = torch.func.grad(lambda x: torch.func.grad(square)(x).sum()) if nested else torch.func.grad(square)
        inner(small)
        (weight * weight).sum().backward()

    disable = torch.autograd.graph.disable_saved_tensors_hooks
    profile = track_memory(step, warmup=1)

    assert 400_000 == profile.by_category()["feature map"]
    assert disable is torch.autograd.graph.disable_saved_tensors_hooks


def test_updates_within_the_backward_pass_are_no_part_of_forward_operators():
    """A call whose tasks were updates could not be run again."""
    model, _, inputs, labels = parts(torch.optim.SGD, lr=0.1)
    updaters = {parameter: torch.optim.SGD([parameter], lr=0.1, foreach=False) for parameter in model.parameters()}

    def update(parameter):
        updaters[parameter].step()
        updaters[parameter].zero_grad()

    for parameter in model.parameters():
        parameter.register_post_accumulate_grad_hook(update)
    graph = capture(
        lambda: torch.nn.functional.cross_entropy(model(inputs), labels).backward(), iterations=2, model=model
    )
    calls = require_program(graph).calls

    assert graph.select(phase=Phase.UPDATE).any()
    assert not (graph.select(phase=Phase.UPDATE) & (graph.tasks["call"] >= 0)).any()
    assert {Phase.FORWARD} == {call.phase for call in calls if call.layer}
    assert 1 == sum(call.mark == "backward" for call in calls)
