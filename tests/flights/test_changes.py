"""What each flight does to a live program: the same training, in another way, and everything put back."""

import inspect
from contextlib import ExitStack, contextmanager

import pytest

from windtunnel import registry
from windtunnel.errors import FlightError, InputError, NotApplicableError

torch = pytest.importorskip("torch")

from torch._subclasses.fake_tensor import FakeTensorMode  # noqa: E402

from windtunnel.flights.data_parallel import SlowLink  # noqa: E402
from windtunnel.sources.torch.hooks import StepHooks  # noqa: E402
from windtunnel.sources.torch.live import LiveProgram  # noqa: E402

SAME_TRAINING = {
    "activation-checkpointing": {},
    "channels-last": {},
    "foreach-optimizer": {},
    "fused-optimizer": {},
    "gc-pauses": {},
    "threads": {"threads": 1},
}


class Network(torch.nn.Module):
    """Two blocks of convolution, norm and rectifier, then a linear layer."""

    def __init__(self):
        super().__init__()
        self.blocks = torch.nn.ModuleList(self.block(3 if place == 0 else 4) for place in range(2))
        self.head = torch.nn.Linear(4, 5)

    @staticmethod
    def block(inputs):
        return torch.nn.Sequential(torch.nn.Conv2d(inputs, 4, 3, padding=1), torch.nn.BatchNorm2d(4), torch.nn.ReLU())

    def forward(self, images):
        for block in self.blocks:
            images = block(images)
        return self.head(images.mean((2, 3)))


def program():
    """A live program, and a function that does one iteration of it."""
    torch.manual_seed(1)
    model = Network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    images, labels = torch.randn(6, 3, 8, 8), torch.randint(0, 5, (6,))

    def step():
        optimizer.zero_grad()
        loss = torch.nn.functional.cross_entropy(model(images), labels)
        loss.backward()
        optimizer.step()
        return loss.item()

    return LiveProgram([model], [optimizer]), step


def picture(live):
    """What a flight could have left behind."""
    model, optimizer = live.models[0], live.optimizers[0]
    return {
        "attributes": {path: sorted(vars(module)) for path, module in model.named_modules()},
        "learns": [parameter.requires_grad for parameter in model.parameters()],
        "strides": [parameter.stride() for parameter in model.parameters()],
        "options": [{key: group[key] for key in group if key != "params"} for group in optimizer.param_groups],
        "methods": sorted({"step", "zero_grad"} & set(vars(optimizer))),
        "functions": (torch.nn.functional.relu, torch.relu, torch.Tensor.backward),
        "hooks": len(model._forward_pre_hooks),
        "threads": torch.get_num_threads(),
    }


def flight(name):
    return registry.get("flight", name).function


def test_every_flight_bears_the_name_and_parameters_of_a_whatif():
    whatifs = registry.all("whatif")
    for name, plugin in registry.all("flight").items():
        accepted = list(inspect.signature(plugin.function).parameters)[1:]

        assert name in whatifs
        assert set(accepted) <= set(whatifs[name].parameters), name
        assert plugin.source
        assert plugin.summary


@pytest.mark.parametrize("name", sorted(SAME_TRAINING))
def test_a_change_of_form_trains_as_before(name):
    plain, plain_step = program()
    changed, changed_step = program()
    expected = [plain_step() for _ in range(4)]
    with flight(name)(changed, **SAME_TRAINING[name]):
        losses = [changed_step() for _ in range(4)]

    assert expected == pytest.approx(losses, rel=1e-4)
    for before, after in zip(plain.models[0].parameters(), changed.models[0].parameters(), strict=True):
        torch.testing.assert_close(before, after, rtol=1e-3, atol=1e-4)


LEAVES_NOTHING = {**SAME_TRAINING, "amp": {}, "freeze-layers": {"layer": "blocks.0"}, "gradient-accumulation": {}}


@pytest.mark.parametrize("name", sorted(LEAVES_NOTHING))
def test_a_flight_that_ends_leaves_nothing_behind(name):
    live, step = program()
    step()
    before = picture(live)
    for _ in range(2):
        with flight(name)(live, **LEAVES_NOTHING[name]):
            step()

    assert before == picture(live)


def test_models_that_show_themselves_later_are_changed_too():
    known, _ = program()
    late = LiveProgram()
    with flight("fused-optimizer")(late):
        late.add(known.models, known.optimizers)
        late.add(known.models, known.optimizers)

        assert late.optimizers[0].param_groups[0]["fused"] is True
    assert late.optimizers[0].param_groups[0]["fused"] is None


def test_what_a_change_wraps_around_a_model_is_not_changed_again():
    """Two wrappers of DistributedDataParallel would send every gradient twice."""
    known, _ = program()
    changed = []
    live = LiveProgram()
    with live.each_model(lambda model: changed.append(model)):
        live.add(known.models)
        live.add([torch.nn.Sequential(known.models[0])])

    assert known.models == changed


def test_autocast_runs_the_model_in_half_precision_and_gives_full_precision_back():
    live, _ = program()
    model = live.models[0]
    seen = []
    model.head.register_forward_hook(lambda _module, _inputs, output: seen.append(output.dtype))
    with flight("amp")(live):
        result = model(torch.randn(2, 3, 8, 8))

    assert ([torch.bfloat16], torch.float32) == (seen, result.dtype)


def test_accumulation_updates_once_with_the_gradients_of_all_passes():
    live, step = program()
    weights = [parameter.detach().clone() for parameter in live.models[0].parameters()]
    with flight("gradient-accumulation")(live, passes=3):
        assert 3 == live.iterations_per_sample
        moved = []
        for _ in range(6):
            step()
            now = [parameter.detach().clone() for parameter in live.models[0].parameters()]
            moved.append(any(not torch.equal(*both) for both in zip(weights, now, strict=True)))
            weights = now

    assert [False, False, True] * 2 == moved
    assert 1 == live.iterations_per_sample


def test_frozen_layers_get_no_gradient():
    live, step = program()
    with flight("freeze-layers")(live, layer=r"blocks\.0"):
        step()
        gradients = {name: parameter.grad is not None for name, parameter in live.models[0].named_parameters()}

    assert {False} == {has for name, has in gradients.items() if name.startswith("blocks.0")}
    assert {True} == {has for name, has in gradients.items() if not name.startswith("blocks.0")}


@pytest.mark.parametrize(
    ("name", "parameters", "message"),
    [
        ("freeze-layers", {"layer": "encoder.*"}, "no trainable parameter"),
        ("activation-checkpointing", {"layer": "encoder"}, "no module matches 'encoder'"),
        ("powersgd", {}, "nothing is sent"),
    ],
)
def test_a_flight_with_nothing_to_change_says_so(name, parameters, message):
    live, _ = program()

    with pytest.raises(FlightError, match=message), flight(name)(live, **parameters):
        pass


@pytest.mark.parametrize(
    ("name", "parameters"),
    [
        ("threads", {"threads": 0}),
        ("amp", {"dtype": "int8"}),
        ("freeze-layers", {"layer": "("}),
        ("loader-workers", {"num_workers": -1}),
    ],
)
def test_a_value_that_makes_no_sense_is_refused(name, parameters):
    live, _ = program()

    with pytest.raises(InputError), flight(name)(live, **parameters):
        pass


def test_an_optimizer_without_a_fused_form_is_named():
    model = torch.nn.Linear(2, 2)
    live = LiveProgram([model], [torch.optim.Adadelta(model.parameters())])

    with pytest.raises(FlightError, match="Adadelta has no fused"), flight("fused-optimizer")(live):
        pass


@pytest.mark.parametrize("is_capturable", [True, False])
def test_step_counts_lie_where_the_implementation_that_uses_them_keeps_its_own(is_capturable):
    with FakeTensorMode():
        parameter = torch.nn.Parameter(torch.ones(3, device="cuda"))
        optimizer = torch.optim.AdamW([parameter], capturable=is_capturable)
        own_device = "cuda" if is_capturable else "cpu"
        optimizer.state[parameter]["step"] = torch.tensor(3.0, device=own_device)
        live = LiveProgram([], [optimizer])

        def device() -> str:
            return optimizer.state[parameter]["step"].device.type

        for name, expected in (("fused-optimizer", "cuda"), ("foreach-optimizer", own_device)):
            with flight(name)(live):
                assert device() == expected
            assert device() == own_device


@pytest.mark.parametrize("is_sparse", [True, False])
def test_a_fused_update_is_refused_before_it_meets_a_sparse_gradient(is_sparse):
    table = torch.nn.Embedding(10, 3, sparse=is_sparse)
    optimizer = torch.optim.SGD(table.parameters(), lr=0.1)
    live = LiveProgram([table], [optimizer])
    before = table.weight.detach().clone()
    for _ in range(2):
        optimizer.zero_grad()
        table(torch.tensor([1, 2])).sum().backward()
        with flight("fused-optimizer")(live):
            if is_sparse:
                with pytest.raises(NotApplicableError, match="no fused update takes sparse gradients, and 1 param"):
                    optimizer.step()
                break
            optimizer.step()

    assert is_sparse == torch.equal(before, table.weight)
    assert not optimizer._optimizer_step_pre_hooks


def test_a_slow_link_carries_one_message_after_the_other():
    link = SlowLink(4, bandwidth_bytes_per_s=1e9, latency_ns=1000)

    # 2 (4 - 1) / 4 * 1e6 bytes at 1 GB/s, and 6 latencies
    assert 10 + 1_506_000 == link.due_ns(1_000_000, now_ns=10)
    assert 10 + 2 * 1_506_000 == link.due_ns(1_000_000, now_ns=20)
    assert 10**9 + 1_506_000 == link.due_ns(1_000_000, now_ns=10**9)


@pytest.mark.slow
@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("leak", [0.0, 0.2, 1.0])
def test_a_norm_that_rectifies_has_the_gradients_of_norm_and_rectifier(leak, threads):
    from windtunnel.cost.rerun.rectified_norm import RectifiedNorm

    torch.manual_seed(0)
    norm = torch.nn.BatchNorm2d(5)
    with torch.no_grad():
        norm.weight.uniform_(0.5, 2)
        norm.bias.uniform_(-1, 1)
    first = torch.randn(4, 5, 7, 3, requires_grad=True)
    second = first.detach().clone().requires_grad_()
    upstream = torch.randn(4, 5, 7, 3)
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    expected = torch.nn.functional.leaky_relu(norm(first), leak)
    expected_gradients = torch.autograd.grad(expected, (first, norm.weight, norm.bias), upstream)
    result, _, _ = RectifiedNorm.apply(second, norm.weight, norm.bias, norm.eps, leak)
    gradients = torch.autograd.grad(result, (second, norm.weight, norm.bias), upstream)
    torch.set_num_threads(before)

    torch.testing.assert_close(expected, result)
    for one, other in zip(expected_gradients, gradients, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-5)


@pytest.mark.slow
def test_reconstructed_norms_train_as_before():
    plain, plain_step = program()
    changed, changed_step = program()
    expected = [plain_step() for _ in range(5)]
    before = picture(changed)
    losses = []
    for _ in range(5):  # enters and leaves, as turns do
        with flight("reconstructed-batchnorm")(changed):
            losses.append(changed_step())

    assert expected == pytest.approx(losses, rel=1e-4)
    assert before == picture(changed)
    for one, other in zip(plain.models[0].buffers(), changed.models[0].buffers(), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-3, atol=1e-4)


@pytest.mark.slow
def test_a_norm_that_is_called_twice_before_its_backward_pass_trains():
    live, _ = program()
    model, images = live.models[0], torch.randn(6, 3, 8, 8)
    with flight("reconstructed-batchnorm")(live):
        first, second = model(images), model(-images)
        (first + second).sum().backward()

    assert all(parameter.grad is not None for parameter in model.parameters())


def test_a_norm_that_rectifies_leaves_the_number_of_threads_as_it_is():
    """A flight behind it would run on all cores, and its prediction on one."""
    from windtunnel.cost.rerun import RectifiedNorm

    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        x, weight, bias = torch.randn(2, 4, 3, 3, requires_grad=True), torch.ones(4), torch.zeros(4)
        RectifiedNorm.apply(x, weight, bias, 1e-5, 0.0)[0].sum().backward()

        assert 1 == torch.get_num_threads()
    finally:
        torch.set_num_threads(before)


def test_a_step_that_calls_back_for_its_loss_is_not_accumulated():
    """Leaving its call out would leave the passes out, too, and look four times as fast."""
    weight = torch.nn.Linear(2, 1)
    optimizer = torch.optim.SGD(weight.parameters(), lr=0.1)
    live = LiveProgram([weight], [optimizer])
    with flight("gradient-accumulation")(live, passes=4):
        optimizer.step()
        with pytest.raises(NotApplicableError, match="calls back for the loss"):
            optimizer.step(lambda: weight(torch.ones(1, 2)).sum())


@contextmanager
def accumulating(is_hooked):
    """A layer and its optimizer under gradient accumulation, as a step function or with the hooks of a script."""
    live = LiveProgram(is_hooked=is_hooked)
    with ExitStack() as stack:
        if is_hooked:
            stack.enter_context(StepHooks(on_boundary=lambda *_: None, on_step=live.step, holds_heap=False))
        layer = torch.nn.Linear(2, 1)
        optimizer = torch.optim.SGD(layer.parameters(), lr=0.1)
        live.add([layer], [optimizer])
        stack.enter_context(flight("gradient-accumulation")(live, passes=2))
        yield layer, optimizer


@pytest.mark.parametrize("is_hooked", [False, True])
def test_a_compiled_model_is_accumulated(is_hooked):
    with accumulating(is_hooked) as (layer, optimizer):
        model = torch.compile(layer, backend="eager")
        weights = []
        for _ in range(4):
            optimizer.zero_grad()
            model(torch.ones(1, 2)).sum().backward()
            optimizer.step()
            weights.append(layer.bias.item())

    assert weights[0] == pytest.approx(weights[1] + 0.2)
    assert weights[1:] == [weights[1], weights[1], pytest.approx(weights[1] - 0.2)]


@pytest.mark.parametrize("is_hooked", [False, True])
def test_a_compiled_update_is_not_accumulated(is_hooked):
    with accumulating(is_hooked) as (layer, optimizer):

        @torch.compile(backend="eager")
        def update():
            optimizer.step()

        layer(torch.ones(1, 2)).sum().backward()
        with pytest.raises(NotApplicableError, match="within compiled code"):
            update()


@pytest.mark.parametrize("use_reentrant", [True, False])
def test_without_checkpoints_every_block_runs_once_and_trains_the_same(use_reentrant):
    from torch.utils.checkpoint import checkpoint

    torch.manual_seed(0)
    block = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Dropout(0.5))
    optimizer = torch.optim.SGD(block.parameters(), lr=0.1)
    calls = []
    block.register_forward_pre_hook(lambda *_: calls.append(torch.is_grad_enabled()))
    inputs = torch.randn(3, 4, requires_grad=True)

    def gradient():
        calls.clear()
        torch.manual_seed(1)
        optimizer.zero_grad()
        checkpoint(block, inputs, use_reentrant=use_reentrant).sum().backward()
        return block[0].weight.grad.clone(), len(calls)

    before, num_before = gradient()
    with flight("no-activation-checkpointing")(LiveProgram([block], [optimizer])):
        without, num_without = gradient()
    after, num_after = gradient()

    torch.testing.assert_close(without, before)
    torch.testing.assert_close(after, before)
    assert (num_before, num_without, num_after) == (2, 1, 2)
