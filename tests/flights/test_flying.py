"""Real flights, end to end."""

import math
from dataclasses import replace

import numpy as np
import pytest

import windtunnel
from windtunnel.errors import FlightError, InputError, NotApplicableError
from windtunnel.flights import Ledger, fly, interval_of, run, verify, with_intervals
from windtunnel.graph import GraphBuilder, Kind, ResourceKind
from windtunnel.measure import StopRule
from windtunnel.sources.targets import target_of
from windtunnel.sources.torch.script import capture_script
from windtunnel.whatifs import whatif

torch = pytest.importorskip("torch")

BRIEF = StopRule(rounds=5, min_rounds=3, precision=0.5, turn_ns=10_000_000, time_limit_s=20)
NO_CHECKPOINTS = "no-activation-checkpointing"
SCRIPT = """
import sys
import torch

model = torch.nn.Sequential(*[torch.nn.Linear(64, 64) for _ in range(12)])
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
data = torch.utils.data.TensorDataset(torch.randn(640, 64), torch.randn(640, 64))
for epoch in range(int(sys.argv[1])):
    for inputs, targets in torch.utils.data.DataLoader(data, batch_size=32):
        optimizer.zero_grad()
        loss = torch.nn.functional.mse_loss(model(inputs), targets)
        loss.backward()
        optimizer.step()
    print("epoch", epoch, "batch", len(inputs), flush=True)
    {end}
"""


@pytest.fixture
def script(tmp_path):
    def write(end=""):
        path = tmp_path / "train.py"
        path.write_text(SCRIPT.replace("{end}", end))
        return path

    return write


@pytest.fixture
def one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def small_step():
    model = torch.nn.Sequential(*[torch.nn.Linear(16, 16) for _ in range(30)])
    optimizer = torch.optim.Adam(model.parameters())
    inputs = torch.randn(4, 16)

    def step():
        optimizer.zero_grad()
        loss = model(inputs).square().mean()
        loss.backward()
        optimizer.step()
        return loss

    return step


@pytest.mark.slow
def test_a_step_function_gives_a_receipt_that_is_kept(tmp_path, one_thread):
    ledger = Ledger(tmp_path / "receipts.db")
    receipt = windtunnel.verify(small_step(), "fused-optimizer", rule=BRIEF, ledger=ledger)

    assert [receipt] == ledger.receipts()
    assert receipt.measured > 1.1  # sixty small updates become one
    assert receipt.predicted > 1.1
    assert math.isfinite(receipt.error_ratio)


@pytest.mark.slow
def test_an_unmodified_script_is_flown_beside_itself(script, tmp_path, one_thread):
    path = script()
    before = path.read_bytes()
    receipt = verify(path, "fused-optimizer", argv=["10000"], rule=BRIEF, ledger=tmp_path / "receipts.db")

    assert before == path.read_bytes()
    assert receipt.measured > 1.05
    assert str(path) in receipt.target


@pytest.mark.slow
def test_two_processes_average_their_gradients_over_a_slow_link(script, one_thread):
    flown = fly(script(), "data-parallel:bandwidth_bytes_per_s=20000000", argv=["10000"], rule=BRIEF)

    # 12 layers of 64 x 64 weights and 64 biases, 4 bytes each, over a link of 20 MB/s: at least 10 ms
    assert flown.changed.value >= 12 * (64 * 64 + 64) * 4 / 20e6 * 1e9


@pytest.mark.slow
@pytest.mark.parametrize(
    ("end", "message"),
    [
        ("raise RuntimeError('out of luck')", "out of luck"),
        ("sys.exit(3)", "ended during warm-up"),
        ("torch.cuda = None; import os; os._exit(7)", "ended|died"),
    ],
)
def test_a_script_that_does_not_go_on_is_refused_with_its_log(script, end, message):
    with pytest.raises(FlightError, match=message) as refusal:
        fly(script(end), "amp", argv=["10000"], rule=replace(BRIEF, warmup=30))
    assert "epoch 0 batch 32" in refusal.value.log_tail


@pytest.mark.slow
def test_a_stored_graph_knows_the_program_that_it_came_from(script, tmp_path, one_thread):
    graph = capture_script(script(), ["10000"], iterations=4)
    windtunnel.save(graph, tmp_path / "train.wt")
    receipt = verify(windtunnel.load(tmp_path / "train.wt"), "fused-optimizer", rule=BRIEF, ledger=tmp_path / "r.db")

    assert f"{tmp_path / 'train.py'} 10000" == receipt.target


def test_a_graph_of_unknown_origin_cannot_be_flown():
    builder = GraphBuilder()
    thread = builder.resource("thread", ResourceKind.HOST_THREAD)
    builder.task("work", kind=Kind.HOST, resource=thread, duration_ns=1)
    graph = builder.build()
    with pytest.raises(InputError, match="does not say which program"):
        fly(graph, "amp")


def test_what_cannot_be_flown_is_refused_before_anything_runs(tmp_path):
    def never():
        raise AssertionError("it ran")

    with pytest.raises(FlightError, match="vdnn can be predicted, but not flown"):
        verify(never, "vdnn", ledger=tmp_path / "receipts.db")
    with pytest.raises(FlightError, match="needs processes of its own"):
        fly(never, "data-parallel")
    with pytest.raises(FlightError, match="changes how the program is built"):
        fly(never, "batch-size")
    with pytest.raises(InputError, match="no workload is called 'transfomer'"):
        fly("transfomer", "amp")
    with pytest.raises(InputError, match="there is no script"):
        fly("nowhere.py", "amp")


@pytest.mark.slow
def test_a_change_that_does_not_apply_is_not_flown(tmp_path, one_thread):
    with pytest.raises(NotApplicableError, match="channels-last does not apply here"):
        verify(small_step(), "channels-last", ledger=tmp_path / "receipts.db")
    assert not (tmp_path / "receipts.db").exists()


@pytest.mark.slow
def test_a_step_that_raises_is_named(one_thread):
    step, calls = small_step(), []

    def breaks():
        calls.append(None)
        if len(calls) > 6:
            raise ValueError("no more data")
        step()

    with pytest.raises(FlightError, match="the step raised ValueError: no more data"):
        fly(breaks, "amp", rule=BRIEF)


@pytest.mark.slow
def test_passes_that_the_program_accumulates_are_part_of_those_that_are_asked_for(tmp_path, one_thread):
    """Eight passes of a program that accumulates four are twice as many; 32 were once flown."""
    model = torch.nn.Linear(16, 16)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    num_passes, seen = 0, []

    def step():
        nonlocal num_passes
        for _ in range(4):
            num_passes += 1
            model(torch.randn(4, 16)).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()

    optimizer.register_step_post_hook(lambda *_: seen.append(num_passes))
    verify(step, "gradient-accumulation:passes=8", rule=BRIEF, ledger=tmp_path / "r.db", prices="measured")

    assert {4, 8} == set(np.diff(seen).tolist())


def test_answers_show_the_receipts_behind_them(tmp_path, one_thread):
    step = small_step()
    graph = windtunnel.capture(step, iterations=6)
    ledger = Ledger(tmp_path / "receipts.db")
    bare = with_intervals(whatif(graph, "fused-optimizer"), ledger)
    for hardware in range(9):
        ledger.add(receipt_like(hardware))
    backed = with_intervals(whatif(graph, "fused-optimizer"), ledger)

    assert "receipts that come with windtunnel" in str(bare[0])
    assert "9 receipts)" in str(backed[0])
    assert interval_of("fused-optimizer", 1.0, ledger).low == pytest.approx(1 / 1.1)


def receipt_like(hardware):
    from tests.flights.test_ledger import receipt

    return receipt("fused-optimizer", predicted_ns=55.0, speedup=2.0, hardware_fingerprint=str(hardware))


@pytest.mark.slow
def test_children_of_a_flown_script_leave_it_alone(script, one_thread):
    body = """import os
    child = os.fork() if epoch < 5 else -1
    if child == 0:
        raise SystemExit(7)
    assert child == -1 or os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7"""

    assert fly(script(body), "foreach-optimizer", argv=["10000"], rule=BRIEF).num_rounds >= 3


SPARSE = """
import torch

table = torch.nn.Embedding(100, 8, sparse=True)
optimizer = torch.optim.SGD(table.parameters(), lr=0.1)
for _ in range(10000):
    optimizer.zero_grad()
    table(torch.randint(100, (16,))).square().sum().backward()
    optimizer.step()
"""


@pytest.mark.slow
def test_a_fused_update_of_sparse_gradients_is_not_applicable_asked_or_flown(tmp_path, one_thread):
    path = tmp_path / "train.py"
    path.write_text(SPARSE)

    for ask in (fly, verify):
        with pytest.raises(NotApplicableError, match="no fused update takes sparse gradients"):
            ask(path, "fused-optimizer", rule=BRIEF)
    # torch goes through sparse gradients one by one, whatever it was told
    with pytest.raises(FlightError, match="changed nothing"):
        verify(path, "foreach-optimizer", rule=BRIEF, ledger=tmp_path / "r.db")
    assert [] == Ledger(tmp_path / "r.db").receipts()


def test_a_change_for_which_the_processor_has_no_kernel_does_not_apply():
    """oneDNN has no bfloat16 form of some layers on processors without units for it."""
    inner = torch.nn.Linear(4, 4)
    optimizer = torch.optim.SGD(inner.parameters())

    class Model(torch.nn.Module):
        def forward(self, inputs):
            if torch.is_autocast_enabled("cpu"):
                raise RuntimeError("could not create a primitive descriptor for the LSTM forward propagation primitive")
            return inner(inputs)

    model = Model()

    def train():
        optimizer.zero_grad()
        model(torch.ones(2, 4)).sum().backward()
        optimizer.step()

    with pytest.raises(NotApplicableError, match="this processor has no kernel for it"):
        fly(train, "amp", rule=BRIEF)


def test_a_flight_without_checkpoints_computes_less_and_is_refused_where_there_are_none(one_thread):
    from torch.utils.checkpoint import checkpoint

    def program(run):
        blocks = [torch.nn.Linear(16, 16) for _ in range(4)]
        optimizer = torch.optim.SGD([one for block in blocks for one in block.parameters()], lr=0.1)

        def step():
            optimizer.zero_grad()
            values = torch.randn(4, 16)
            for block in blocks:
                values = run(block, values)
            values.sum().backward()
            optimizer.step()

        return step

    flown = fly(
        program(lambda block, values: checkpoint(block, values, use_reentrant=False)), NO_CHECKPOINTS, rule=BRIEF
    )
    assert flown.speedup.value > 0

    with pytest.raises(FlightError, match="changed nothing"):
        fly(program(lambda block, values: block(values)), NO_CHECKPOINTS, rule=BRIEF)


@pytest.mark.parametrize(("free", "refuses"), [(2 << 20, True), (1 << 40, False)])
def test_a_flight_that_does_not_fit_is_refused_before_it_starts(tmp_path, monkeypatch, one_thread, free, refuses):
    model = torch.nn.Sequential(torch.nn.Linear(64, 512), torch.nn.Tanh(), torch.nn.Linear(512, 8))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    inputs = torch.randn(512, 64)

    def step():
        optimizer.zero_grad()
        model(inputs).square().mean().backward()
        optimizer.step()

    graph = windtunnel.capture(step, iterations=2, model=model)
    answer = whatif(graph, "batch-size:factor=4", database=":memory:", budget_s=0.01)[0]
    monkeypatch.setattr(run, "available_bytes", lambda: free)
    if not refuses:
        run.require_memory(answer, target_of(step))
        return
    with pytest.raises(FlightError, match="MiB are free") as refused:
        run.require_memory(answer, target_of(step))
    assert "batch of at most" in refused.value.fix
