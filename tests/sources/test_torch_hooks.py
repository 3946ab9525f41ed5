"""The hooks by which a flight changes a program between its iterations."""

import pytest

from windtunnel.sources.torch.hooks import StepHooks

torch = pytest.importorskip("torch", reason="needs the extra torch")


def train(iterations, optimizer=None, model=None):
    model = model or torch.nn.Linear(4, 2)
    optimizer = optimizer or torch.optim.SGD(model.parameters(), lr=0.1)
    inputs = torch.randn(8, 4)
    for _ in range(iterations):
        optimizer.zero_grad()
        model(inputs).sum().backward()
        optimizer.step()
    return model, optimizer


def test_models_and_optimizers_are_found_by_themselves():
    with StepHooks(on_boundary=lambda *_: None) as hooks:
        model, optimizer = train(4)

    assert [model] == hooks.models
    assert [optimizer] == hooks.optimizers
    assert 4 == hooks.num_steps


def test_an_optimizer_made_before_is_found_too():
    model = torch.nn.Linear(4, 2)
    optimizer = torch.optim.Adam(model.parameters())
    with StepHooks(on_boundary=lambda *_: None) as hooks:
        train(4, optimizer, model)

    assert [optimizer] == hooks.optimizers
    assert hooks.num_boundaries >= 2


class Inherited(torch.optim.SGD):
    """Its step is that of another class."""


def test_a_step_that_is_inherited_counts_once():
    model = torch.nn.Linear(4, 2)
    with StepHooks(on_boundary=lambda *_: None) as hooks:
        optimizer = Inherited(model.parameters(), lr=0.1)
        train(3, optimizer, model)

    assert 3 == hooks.num_steps


def test_a_boundary_can_change_the_optimizer_before_a_chosen_iteration():
    rates = []

    def at_boundary(hooks, is_regular):
        if hooks.num_boundaries == 3:
            hooks.optimizers[0].param_groups[0]["lr"] = 0.0
        rates.append((is_regular, hooks.optimizers[0].param_groups[0]["lr"]))

    with StepHooks(on_boundary=at_boundary):
        train(6)

    assert [(False, 0.1), (True, 0.1), (True, 0.0), (True, 0.0), (True, 0.0)] == rates


def test_a_loader_can_be_made_otherwise():
    dataset = torch.utils.data.TensorDataset(torch.arange(8.0))

    with StepHooks(on_boundary=lambda *_: None, on_loader=lambda given: {**given, "batch_size": 4}) as hooks:
        loader = torch.utils.data.DataLoader(dataset, 2, shuffle=False)

    assert [4, 4] == [len(batch[0]) for batch in loader]
    assert [loader] == hooks.loaders


def test_an_optimizer_step_can_be_replaced():
    steps = []

    def every_second(optimizer, step):
        steps.append(optimizer)
        return step() if len(steps) % 2 == 0 else None

    with StepHooks(on_boundary=lambda *_: None, on_step=every_second):
        train(4)

    assert 4 == len(steps)


def test_a_step_within_a_step_is_one_step():
    class Outer(torch.optim.Optimizer):
        def __init__(self, inner):
            super().__init__(inner.param_groups, {})
            self.inner = inner

        def step(self, closure=None):
            return self.inner.step(closure)

    model = torch.nn.Linear(4, 2)
    with StepHooks(on_boundary=lambda *_: None) as hooks:
        train(3, Outer(torch.optim.SGD(model.parameters(), lr=0.1)), model)

    assert 3 == hooks.num_steps


def test_an_error_in_the_program_still_takes_the_hooks_away():
    original = torch.optim.Optimizer.__init__

    def broken(hooks, is_regular):
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError), StepHooks(on_boundary=broken):
        train(4)

    assert original is torch.optim.Optimizer.__init__
    assert not torch.nn.modules.module._global_forward_pre_hooks


def test_an_inherited_step_is_given_back():
    model = torch.nn.Linear(4, 2)
    for _ in range(2):
        with StepHooks(on_boundary=lambda *_: None) as hooks:
            train(1, torch.optim.Adam(model.parameters()), model)
            train(2, torch.optim.AdamW(model.parameters()), model)
        assert 3 == hooks.num_steps
    assert not getattr(torch.optim.AdamW.step, "is_windtunnel", False)


def test_a_loop_that_updates_within_the_backward_pass_ends_its_iterations_behind_it():
    """Instruments that change in the middle of an operator would crash."""
    model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Linear(4, 2))
    updaters = {parameter: torch.optim.SGD([parameter], lr=0.1) for parameter in model.parameters()}
    for parameter, updater in updaters.items():
        parameter.register_post_accumulate_grad_hook(lambda _, updater=updater: updater.step())
    seen = []
    with StepHooks(on_boundary=lambda _, is_regular: seen.append((torch._C._current_graph_task_id(), is_regular))):
        for _ in range(5):
            model(torch.randn(8, 4)).sum().backward()

    assert [(-1, False)] + [(-1, True)] * (len(seen) - 1) == seen
    assert len(seen) >= 3
