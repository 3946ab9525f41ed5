"""A real step becomes a graph whose structure is that of the program."""

import json

import numpy as np
import pytest

from windtunnel.errors import InputError
from windtunnel.graph import EdgeKind, Kind, Phase
from windtunnel.graph.parameters import optimizer_state_ratio
from windtunnel.simulate import replay
from windtunnel.sources.torch.step import capture
from windtunnel.whatifs import whatif

torch = pytest.importorskip("torch", reason="needs the extra torch")


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.first = torch.nn.Linear(32, 64)
        self.norm = torch.nn.BatchNorm1d(64)
        self.second = torch.nn.Linear(64, 8)

    def forward(self, inputs):
        return self.second(torch.relu(self.norm(self.first(inputs))))


def training_step(optimizer=torch.optim.SGD, **options):
    torch.manual_seed(0)
    model = Net()
    updater = optimizer(model.parameters(), lr=0.01, **options)
    inputs, labels = torch.randn(128, 32), torch.randint(0, 8, (128,))
    loss_function = torch.nn.CrossEntropyLoss()

    def step():
        updater.zero_grad()
        loss_function(model(inputs), labels).backward()
        updater.step()

    return step


@pytest.fixture(scope="module", autouse=True)
def one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="module")
def graph():
    return capture(training_step(), iterations=6, warmup=2)


def rows(graph, **criteria):
    return np.flatnonzero(graph.select(**criteria))


def test_the_replay_is_the_sum_of_the_main_thread(graph):
    assert int(graph.duration_ns.sum()) == replay(graph).makespan_ns


def test_every_module_shows_in_forward_and_backward(graph):
    for phase in (Phase.FORWARD, Phase.BACKWARD):
        layers = {graph.tasks.strings("layer").decode(row) for row in rows(graph, phase=phase, kind=Kind.COMPUTE)}
        assert {"first", "norm", "second"} <= layers


def test_updates_belong_to_the_layer_of_their_parameter(graph):
    updates = rows(graph, phase=Phase.UPDATE, kind=Kind.COMPUTE)

    assert 6 == len(updates)  # one per parameter
    assert {"first", "norm", "second"} == {graph.tasks.strings("layer").decode(row) for row in updates}


def test_a_gradient_flows_from_the_backward_product_to_the_update(graph):
    edges = graph.edges
    is_data = edges["kind"] == EdgeKind.DATA
    pairs = set(zip(edges["src"][is_data].tolist(), edges["dst"][is_data].tolist(), strict=True))
    products = rows(graph, phase=Phase.BACKWARD, layer="second", op="aten::mm")
    updates = rows(graph, phase=Phase.UPDATE, layer="second", kind=Kind.COMPUTE)

    assert any((src, dst) in pairs for src in products for dst in updates)


def test_the_second_layer_reads_what_the_relu_wrote(graph):
    edges = graph.edges
    relu = rows(graph, phase=Phase.FORWARD, op="aten::clamp_min|aten::relu", kind=Kind.COMPUTE)
    product = rows(graph, phase=Phase.FORWARD, layer="second", op="aten::addmm")
    found = np.isin(edges["src"], relu) & np.isin(edges["dst"], product) & (edges["kind"] == EdgeKind.DATA)

    assert 1 == found.sum()
    assert 128 * 64 * 4 == edges["size_bytes"][found][0]


def test_a_parameter_is_not_overwritten_before_its_last_reader(graph):
    edges = graph.edges
    readers = rows(graph, phase=Phase.BACKWARD, layer="second", op="aten::mm")
    updates = rows(graph, phase=Phase.UPDATE, layer="second", kind=Kind.COMPUTE)
    guarded = edges["kind"] == EdgeKind.CONTROL

    assert (np.isin(edges["src"], readers) & np.isin(edges["dst"], updates) & guarded).any()


@pytest.mark.parametrize(
    ("optimizer", "options", "expected"),
    [
        (torch.optim.SGD, {}, 0.0),
        (torch.optim.SGD, {"momentum": 0.9}, 1.0),
        (torch.optim.Adam, {}, 2.0),
        (torch.optim.Adam, {"amsgrad": True}, 3.0),
    ],
)
def test_what_an_optimizer_keeps_is_counted(optimizer, options, expected):
    graph = capture(training_step(optimizer, **options), iterations=1, warmup=1)

    assert expected == optimizer_state_ratio(graph)


def test_the_thread_is_one_chain(graph):
    order = graph.edges["kind"] == EdgeKind.ORDER

    assert np.arange(graph.num_tasks - 1).tolist() == graph.edges["src"][order].tolist()
    assert np.arange(1, graph.num_tasks).tolist() == graph.edges["dst"][order].tolist()


def test_work_and_shapes_are_known(graph):
    product = rows(graph, phase=Phase.FORWARD, layer="first", op="aten::addmm", kind=Kind.COMPUTE)[0]
    tasks = graph.tasks

    assert 2 * 128 * 32 * 64 == tasks["flops"][product]
    assert [[64], [128, 32], [32, 64]] == json.loads(tasks.strings("input_shapes").decode(product))[:3]
    assert "Tensor(float)" == json.loads(tasks.strings("input_dtypes").decode(product))[0]
    assert 4 * (64 + 32 * 64) == tasks["param_bytes"][product]
    assert 4 * 128 * 64 == tasks["output_bytes"][product]
    assert tasks.strings("op_schema").decode(product).startswith("aten::addmm(")


def test_what_is_allocated_in_an_iteration_is_freed_in_it(graph):
    assert graph.tasks["output_bytes"].sum() == pytest.approx(graph.tasks["freed_bytes"].sum(), abs=64 * 1024)


def test_every_profiled_iteration_keeps_its_own_durations(graph):
    assert (graph.num_tasks, 6) == graph.tasks["samples_ns"].shape


def test_meta_tells_both_times_and_what_was_taken_out(graph):
    meta = graph.meta

    assert 6 == len(meta.profiled_iteration_ns["samples"])
    num_bare = len(meta.iteration_ns["samples"])
    assert num_bare == 6 or 16 <= num_bare <= 400  # in turn, or in a row where the step is short
    assert 0 < meta.overhead["event_enter_ns"] < 20_000
    if "lost_ratio" not in meta.disturbance:  # else what a quiet machine would have shown is an estimate
        assert 2 * len(meta.overhead["held_out_ns"]) in (num_bare - 1, num_bare, num_bare + 1)
    assert meta.memory_base_bytes > 4 * (32 * 64 + 64 * 8)
    json.dumps(meta.to_dict())


def test_python_between_operators_is_host_time_of_its_phase(graph):
    python = rows(graph, op="python")

    assert len(python)
    assert {int(Kind.HOST)} == set(graph.tasks["kind"][python].tolist())
    assert {int(Phase.FORWARD), int(Phase.BACKWARD)} <= set(graph.tasks["phase"][python].tolist())


def test_capture_leaves_no_hook_behind():
    from torch.nn.modules import module
    from torch.optim import optimizer

    capture(training_step(), iterations=1, warmup=1)

    assert not module._global_forward_pre_hooks
    assert not module._global_forward_hooks
    assert not optimizer._global_optimizer_pre_hooks


def test_a_fused_update_belongs_to_no_single_layer():
    graph = capture(training_step(torch.optim.Adam, fused=True), iterations=2, warmup=2)
    updates = rows(graph, phase=Phase.UPDATE, kind=Kind.COMPUTE, op="aten::_fused_adam_")

    assert len(updates)
    assert "" in {graph.tasks.strings("layer").decode(row) for row in updates}


def test_iterations_that_differ_keep_their_whole_length():
    torch.manual_seed(0)
    base, count = training_step(), iter(range(10_000))
    extra = torch.randn(64, 64)

    def step():
        base()
        if next(count) % 3 == 0:
            (extra @ extra).sum().item()

    graph = capture(step, iterations=6, warmup=2)

    assert graph.meta.overhead["num_unlike_iterations"] >= 1
    assert 6 == graph.tasks["samples_ns"].shape[1]


def test_a_step_that_raises_leaves_no_profiler_running():
    calls = iter(range(100))

    def step():
        if next(calls) == 8:
            raise RuntimeError("broken")
        torch.ones(3).sum()

    with pytest.raises(RuntimeError, match="broken"):
        capture(step, iterations=6, warmup=2)

    assert 2 <= capture(training_step(), iterations=2, warmup=1).num_tasks


@pytest.mark.parametrize(("step", "iterations"), [(None, 3), (lambda: None, 0)])
def test_nothing_to_capture_is_said_at_once(step, iterations):
    with pytest.raises(InputError, match="a function to call and at least one iteration"):
        capture(step, iterations=iterations)


def test_a_recomputed_forward_is_backward_work_of_its_layer():
    from torch.utils.checkpoint import checkpoint

    torch.manual_seed(0)
    model = Net()
    updater = torch.optim.SGD(model.parameters(), lr=0.01)
    inputs = torch.randn(16, 32)

    def step():
        updater.zero_grad()
        checkpoint(model, inputs, use_reentrant=False).sum().backward()
        updater.step()

    graph = capture(step, iterations=2, warmup=2)

    for phase in (Phase.FORWARD, Phase.BACKWARD):
        assert 1 == len(rows(graph, phase=phase, layer="first", op="aten::addmm", kind=Kind.COMPUTE))


def test_an_inner_module_that_is_called_by_itself_keeps_its_full_path():
    model = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.Sequential(torch.nn.Linear(8, 8)))
    updater = torch.optim.SGD(model.parameters(), lr=0.01)

    def step():
        updater.zero_grad()
        model[1](model[0](torch.ones(4, 8))).sum().backward()
        updater.step()

    graph = capture(step, iterations=2, warmup=2)

    assert {"0", "1.0"} <= {graph.tasks.strings("layer").decode(row) for row in rows(graph, op="aten::addmm")}


def test_a_step_on_a_device_is_refused_with_the_way_that_works():
    model = torch.nn.Linear(4, 4, device="meta")
    updater = torch.optim.SGD(model.parameters(), lr=0.01)

    with pytest.raises(InputError, match="this step computes on meta") as caught:
        capture(lambda: None, iterations=1, warmup=1, model=model, optimizer=updater)

    assert "torch.profiler" in caught.value.fix


def test_sparse_gradients_are_kept_and_no_fused_update_is_promised_for_them():
    table = torch.nn.EmbeddingBag(50, 4, sparse=True)
    head = torch.nn.Linear(4, 1)
    updaters = [torch.optim.Adam(head.parameters()), torch.optim.SGD(table.parameters(), lr=0.1)]
    bags = torch.randint(0, 50, (6, 5))

    def step():
        head(table(bags)).square().sum().backward()
        for updater in updaters:
            updater.step()
            updater.zero_grad()

    graph = capture(step, iterations=2, warmup=1)
    groups = [one["groups"][0] for one in graph.meta.optimizers]
    (fused,) = whatif(graph, "fused-optimizer", database=":memory:", budget_s=0.01)
    (listed,) = whatif(graph, "foreach-optimizer", database=":memory:", budget_s=0.01)

    assert [[False, False], [True]] == [group["sparse"] for group in groups]
    assert "no fused update takes sparse gradients, and 1 parameters have them" in fused.reason
    assert listed.is_applicable


def test_iterations_that_vary_are_told(caplog):
    """Some iterations are a hundred times as long as others, in no order."""
    model = torch.nn.Linear(64, 64)
    updater = torch.optim.SGD(model.parameters(), lr=0.0)
    random = np.random.default_rng(0)

    def step():
        updater.zero_grad()
        inputs = torch.randn(64, 64)
        for _ in range(int(random.choice([1, 100]))):
            inputs = inputs + 1
        model(inputs).sum().backward()
        updater.step()

    overhead = capture(step, iterations=10, warmup=1).meta.overhead

    assert overhead["iterations_wanted"] > 10
    assert [overhead["note"]] == [record.message for record in caplog.records]


def test_memory_is_kept_over_time_and_at_its_peak():
    memory = json.loads(json.dumps(capture(training_step(), iterations=2, warmup=1).meta.memory))
    curves = np.array(list(memory["curve"]["by_category"].values()))

    assert memory["peak_bytes"] == curves.sum(axis=0).max() == sum(memory["by_category"].values())
    assert len(memory["curve"]["time_ns"]) == curves.shape[1]
    assert (np.diff(memory["curve"]["time_ns"]) >= 0).all()
    assert (curves >= 0).all()
    assert memory["peak_bytes"] >= sum(row["size_bytes"] for row in memory["largest"]) > 0


@pytest.mark.parametrize(("groups", "batch"), [(1, 32), (8, 32), (1, 2)])
def test_a_convolution_s_backward_pass_computes_in_one_task(groups, batch):
    layer = torch.nn.Conv2d(8, 8, 3, padding=1, groups=groups)  # the gradient of its bias is a sum of its own
    images = torch.randn(batch, 8, 16, 16, requires_grad=True)

    def step():
        layer.zero_grad()
        layer(images).square().mean().backward()

    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # of few images the products are another operator's then
    shares = []
    try:
        for _ in range(3):  # another program may run in the middle of a task
            graph = capture(step, iterations=4, warmup=1, model=layer)
            is_conv = graph.select(op=".*conv.*backward.*")
            computes = is_conv & graph.select(kind=Kind.COMPUTE)
            assert 1 == np.count_nonzero(computes)
            assert [4 * batch * 8 * 16 * 16 * (8 // groups) * 9] == graph.tasks["flops"][computes].tolist()
            shares.append(graph.duration_ns[is_conv & ~computes].sum() / graph.duration_ns[computes].sum())
            if shares[-1] < 0.5:
                break
    finally:
        torch.set_num_threads(threads)

    assert min(shares) < 0.5
