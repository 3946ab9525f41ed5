"""Memory by category: numbers worked out on paper, other trackers, and programs that do unusual things."""

import gc
import textwrap
from itertools import pairwise

import numpy as np
import pytest

from windtunnel.errors import InputError, SchemaVersionError
from windtunnel.hardware import device
from windtunnel.sources.memory.tracking import CATEGORIES, MemoryProfile, predict_memory, require_fit, track_memory

torch = pytest.importorskip("torch", reason="needs the extra torch")
nn = torch.nn
functional = torch.nn.functional


def mlp(widths, activation=nn.ReLU):
    layers = [layer for pair in pairwise(widths) for layer in (nn.Linear(*pair), activation())]
    return nn.Sequential(*layers[:-1])


def trained(model, inputs, *, optimizer=None, loss=torch.sum, **zeroing):
    optimizer = optimizer or torch.optim.Adam(model.parameters())

    def step():
        optimizer.zero_grad(**zeroing)
        loss(model(inputs)).backward()
        optimizer.step()

    return step, optimizer


def rows(profile, **wanted):
    """Births with these values."""
    found = [row for row in profile.events.to_pylist() if row["event"] == "birth"]
    return [row for row in found if all(row[key] == value for key, value in wanted.items())]


def test_a_perceptron_with_adam_holds_what_paper_says():
    """Weights 4 sum (d_i + 1) d_(i+1), as much for gradients, twice for Adam and 4 per count; ReLU's results saved."""
    widths, batch = [7, 33, 65, 17, 3], 11
    model = mlp(widths)
    step, optimizer = trained(model, torch.randn(batch, widths[0]))

    profile = track_memory(step, model=model, optimizer=optimizer)

    weights = 4 * sum((d + 1) * e for d, e in pairwise(widths))
    num_parameters = 2 * (len(widths) - 1)
    most = profile.at_most()
    assert weights == most["weight"] == most["gradient"]
    assert 2 * weights + 4 * num_parameters == most["optimizer state"]
    assert 4 * batch * widths[0] == most["input"]
    assert 4 * batch * sum(widths[1:-1]) == most["feature map"]


def convolutional():
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU(inplace=True), nn.Flatten(), nn.Linear(144, 2))
    return model, *trained(model, torch.randn(5, 3, 8, 8))


def test_categories_sum_to_what_the_allocator_holds_after_every_event():
    """Its own counter, not the books; a block of an earlier log that goes meanwhile is in neither."""
    from windtunnel.sources.memory.allocator_log import AllocatorLog
    from windtunnel.sources.memory.watch import Watch

    model, step, optimizer = convolutional()
    for _ in range(3):
        step()
    with AllocatorLog():
        of_earlier_log = torch.zeros(8)
    watch = Watch(workspace=True)
    watch.discovery.add([model], [optimizer])
    with watch:
        del of_earlier_log
        step()
    profile = watch.profile()

    before = {row["storage"] for row in rows(profile, phase="before")}
    changes = list(zip(profile.events.to_pylist(), profile.held_bytes.sum(axis=1), strict=True))
    resting = sum(row["size_bytes"] for row in rows(profile, phase="before"))
    booked = []
    for row, held in changes:
        if row["storage"] in before:
            resting -= (row["event"] == "death") * next(
                one["size_bytes"] for one in rows(profile, storage=row["storage"])
            )
        elif row["event"] in ("birth", "death"):
            booked.append(held - resting)
    log = watch.log.read().changes
    base = log[0].held_bytes - log[0].size_bytes
    counted, came = [], set()
    for change in log:
        if change.size_bytes < 0 and change.address not in came:
            base += change.size_bytes
            continue
        (came.add if change.size_bytes > 0 else came.discard)(change.address)
        counted.append(change.held_bytes - base)
    assert len(booked) > 60
    assert booked == counted


def test_categories_of_fake_tensors_sum_to_all_that_is_alive_after_every_event():
    """Asked of the storages themselves, one by one, and not of the books."""
    from windtunnel.sources.memory.fake_mode import fake_tensors
    from windtunnel.sources.memory.watch import Watch

    with fake_tensors():
        model, step, optimizer = convolutional()
        step()
        step()
        watch = Watch(is_fake=True)
        watch.discovery.add([model], [optimizer])
        alive = []
        with watch:
            watch.tracker.audit = lambda tracker: alive.append(
                sum(storage.nbytes() for _, storage in tracker.storages_alive())
            )
            step()
    profile, num_initial = watch.profile(), len(watch.tracker.ledger.initial)

    assert num_initial == len({row["storage"] for row in rows(profile, phase="before")})
    booked = profile.held_bytes.sum(axis=1)[num_initial:]
    # inputs are found at their first use, and booked from the beginning on
    assert len(booked) == len(alive) > 60
    assert set((booked - np.array(alive)).tolist()) <= {0, 5 * 3 * 8 * 8 * 4}
    assert booked[-1] == alive[-1]


def test_the_peak_is_that_of_torchs_own_tracker():
    """torch.distributed's MemTracker, in the same process on the same step."""
    from torch.distributed._tools.mem_tracker import MemTracker

    model = mlp([64, 128, 128, 10], nn.Tanh)
    inputs = torch.randn(32, 64)
    step, optimizer = trained(model, inputs)
    mine = track_memory(step, model=model, optimizer=optimizer, workspace=False)
    theirs = MemTracker()
    theirs.track_external(model, optimizer, inputs)
    with theirs:
        step()

    peak = theirs.get_tracker_snapshot("peak")[torch.device("cpu")]
    assert peak["Total"] == mine.peak_bytes


def test_the_total_is_what_the_allocator_counted():
    """torch's allocator, asked from before the model was made, without the tracker."""
    from windtunnel.sources.memory.allocator_log import AllocatorLog

    def build():
        torch.manual_seed(0)
        model = nn.Sequential(nn.Conv2d(3, 16, 3), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(16 * 49, 10))
        return trained(model, torch.randn(16, 3, 16, 16))[0]

    gc.collect()
    with AllocatorLog() as log:
        step = build()
        for _ in range(3):
            step()
    profile = track_memory(build())

    assert profile.peak_bytes == pytest.approx(log.read().peak_bytes(), rel=0.02)


def test_views_and_operations_in_place_are_counted_once():
    inputs = torch.randn(256)

    def step():
        made = inputs * 2
        for view in (made.view(16, 16), made[3:], made.t(), made.detach()):
            view.add_(1)

    profile = track_memory(step, workspace=False)

    assert 2 * 1024 == profile.peak_bytes
    assert 1024 == profile.by_category()["input"] == profile.by_category()["temporary"]


def test_gradients_that_are_zeroed_stay_and_those_set_to_none_go():
    profiles = []
    for keeps in (True, False):
        model = mlp([4, 4])
        profiles.append(track_memory(trained(model, torch.randn(2, 4), set_to_none=not keeps)[0], model=model))

    for profile, num_deaths in zip(profiles, (0, 2), strict=True):
        gone = [row for row in profile.events.to_pylist() if row["event"] == "death" and row["category"] == "gradient"]
        assert num_deaths == len(gone)
        assert 80 == profile.at_most()["gradient"]


def test_a_retained_graph_keeps_its_feature_maps():
    model = mlp([8, 8, 8])
    inputs = torch.randn(4, 8)

    def step(times):
        model.zero_grad()
        loss = model(inputs).sum()
        for turn in range(times):
            loss.backward(retain_graph=turn + 1 < times)

    for times in (1, 3):
        events = track_memory(lambda times=times: step(times), model=model, workspace=False).events.to_pylist()
        (saved,) = [row["storage"] for row in events if (row["event"], row["category"]) == ("category", "feature map")]
        places = {row["storage"]: place for place, row in enumerate(events) if row["event"] == "death"}
        ends = [place for place, row in enumerate(events) if row["event"] == "birth" and row["name"] == "aten::mm"]

        # it outlives the products of every backward pass before the last
        assert places[saved] > ends[len(ends) * (times - 1) // times]


def test_a_gradient_of_a_gradient_is_followed():
    model = mlp([6, 12, 1], nn.Tanh)
    inputs = torch.randn(5, 6)

    def step():
        model.zero_grad()
        points = inputs.clone().requires_grad_()
        slope = torch.autograd.grad(model(points).sum(), points, create_graph=True)[0]
        (slope.norm(dim=1) - 1).square().mean().backward()

    profile = track_memory(step, model=model)

    saved = {row["phase"] for row in profile.events.to_pylist() if row["category"] == "feature map"}
    assert {"forward", "backward"} <= saved
    layers = {row["layer"] for row in rows(profile, phase="backward")}
    assert {"0", "1", "2"} <= layers


def test_a_storage_that_grows_is_seen_to_grow():
    from windtunnel.sources.memory.storages import RESIZE
    from windtunnel.sources.memory.tracker import StorageTracker
    from windtunnel.sources.torch.annotate import Discovery

    def step():
        grown = torch.zeros(10)
        grown.resize_(1000)
        outside = torch.zeros(10)
        outside.untyped_storage().resize_(8000)
        return outside + 0 if outside.untyped_storage().nbytes() else grown

    profile = track_memory(step, workspace=False)
    tracker = StorageTracker(Discovery())
    tracker.start()
    step()
    tracker.stop()

    # the allocator exchanges blocks; fake tensors' storages change their size
    assert {40, 4000, 8000} == {row["size_bytes"] for row in rows(profile)}
    assert 2 == sum(event == RESIZE for _, event, *_ in tracker.ledger.entries)
    assert 4000 + 8000 + 40 == profile.peak_bytes


def test_sparse_gradients_are_gradients():
    model = nn.Embedding(100, 8, sparse=True)
    step, optimizer = trained(model, torch.tensor([1, 2, 3]), optimizer=torch.optim.SGD(model.parameters(), lr=0.1))

    profile = track_memory(step, model=model, optimizer=optimizer)

    assert 3 * 8 * 4 + 3 * 8 == profile.at_most()["gradient"]


def test_running_statistics_are_weights():
    model = nn.BatchNorm1d(10)
    profile = track_memory(trained(model, torch.randn(4, 10))[0], model=model)

    assert 4 * 40 + 8 == profile.by_category()["weight"]
    assert "BatchNorm1d.running_mean" in {row["name"] for row in rows(profile, category="weight")}


def test_a_checkpoint_keeps_nothing_but_its_input_until_it_runs_again():
    from torch.utils.checkpoint import checkpoint

    inner = mlp([16, 64, 64, 64, 16], nn.Tanh)
    head = nn.Linear(16, 16)
    inputs = torch.randn(8, 16)

    def plain():
        inner(head(inputs)).sum().backward()

    def checkpointed():
        checkpoint(inner, head(inputs), use_reentrant=False).sum().backward()

    before, after = (track_memory(step, model=[head, inner], workspace=False) for step in (plain, checkpointed))

    def held(profile, phase):
        """Feature maps made in this phase, at most."""
        table = profile.by_layer().to_pylist()
        return sum(row["most_bytes"] for row in table if (row["phase"], row["category"]) == (phase, "feature map"))

    hidden = 4 * 8 * 3 * 64
    assert hidden + 4 * 8 * 16 == held(before, "forward")
    assert 4 * 8 * 16 == held(after, "forward")
    assert hidden == held(after, "backward")
    assert {"Sequential.1", "Sequential.3", "Sequential.5"} == {
        row["layer"] for row in rows(after, phase="backward") if row["name"] == "aten::tanh"
    }


def test_backward_knows_the_layer_and_every_birth_its_line():
    model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 1))
    step, _ = trained(model, torch.randn(3, 4))

    profile = track_memory(step, model=model)

    by_layer = {(row["layer"], row["name"]) for row in rows(profile, phase="backward")}
    assert ("1", "aten::tanh_backward") in by_layer
    assert {"0", "2"} <= {layer for layer, name in by_layer if name.endswith(".grad")}
    assert all(row["line"].startswith("tests/sources/test_memory.py:") for row in rows(profile, phase="forward"))
    assert "0.weight.grad" in profile.alive_at_peak().column("name").to_pylist()


def test_a_batch_from_a_loader_is_input():
    from torch.utils.data import DataLoader, TensorDataset

    model = nn.Linear(6, 3)
    loader = DataLoader(TensorDataset(torch.randn(64, 6), torch.randint(0, 3, (64,))), batch_size=8)
    batches = iter([batch for _ in range(9) for batch in loader])

    def step():
        for inputs, labels in loader:
            functional.cross_entropy(model(inputs), labels).backward()
            break

    del batches
    profile = track_memory(step, model=model)

    made = rows(profile, phase="data", category="input")
    assert {8 * 6 * 4, 8 * 8} <= {row["size_bytes"] for row in made}


RECIPES = {
    "convolutions": lambda: (
        nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.MaxPool2d(2)),
        (4, 3, 12, 12),
    ),
    "attention": lambda: (nn.TransformerEncoderLayer(16, 2, 32, batch_first=True, dropout=0.1), (3, 7, 16)),
    "recurrent": lambda: (Recurrent(), (9, 5, 12)),
    "checkpointed": lambda: (Checkpointed(use_reentrant=False), (9, 16)),
    "checkpointed, reentrant": lambda: (Checkpointed(use_reentrant=True), (9, 16)),
}


class Checkpointed(nn.Module):
    """Every checkpoint keeps the state of the random number generator."""

    def __init__(self, use_reentrant):
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(16, 16) for _ in range(4))
        self.use_reentrant = use_reentrant

    def forward(self, inputs):
        values = self.layers[0](inputs)
        for layer in self.layers[1:]:
            values = torch.utils.checkpoint.checkpoint(layer, values, use_reentrant=self.use_reentrant)
        return values


class Recurrent(nn.Module):
    def __init__(self):
        super().__init__()
        self.lstm = nn.LSTM(12, 20, num_layers=2)

    def forward(self, inputs):
        return self.lstm(inputs)[0]


@pytest.mark.parametrize("name", RECIPES)
def test_fake_tensors_predict_the_very_peak(name):
    def build():
        model, shape = RECIPES[name]()
        return trained(model, torch.randn(shape))[0]

    predicted, real = predict_memory(build), track_memory(build(), workspace=False)

    assert real.peak_bytes == predicted.peak_bytes
    assert real.by_category() == predicted.by_category()


REDUCED_IN_PLACE = ("binary_cross_entropy", "mse_loss", "smooth_l1_loss", "soft_margin_loss")


@pytest.mark.parametrize("loss", [*REDUCED_IN_PLACE, "huber_loss"])
def test_a_loss_holds_what_its_kernel_leaves_behind_the_number_it_returns(loss):
    def build():
        layer = nn.Linear(12, 96)
        inputs, targets = torch.randn(64, 12), torch.ones(64, 96)
        optimizer = torch.optim.Adam(layer.parameters())

        def step():
            optimizer.zero_grad()
            value = getattr(functional, loss)(torch.sigmoid(layer(inputs)), targets)
            value.backward()
            optimizer.step()

        return step

    predicted, real = predict_memory(build), track_memory(build(), workspace=False)

    assert real.peak_bytes == predicted.peak_bytes
    assert real.by_category() == predicted.by_category()
    held = [row["size_bytes"] for row in rows(predicted, name=f"aten::{loss}")]
    assert loss not in REDUCED_IN_PLACE or held == [4 * 64 * 96]


def test_the_peak_without_workspace_is_that_of_a_run_that_leaves_it_out():
    model, step, optimizer = convolutional()

    whole = track_memory(step, model=model, optimizer=optimizer)
    least = track_memory(step, model=model, optimizer=optimizer, workspace=False)

    assert least.peak_bytes == least.peak_without_workspace_bytes == whole.peak_without_workspace_bytes
    assert whole.peak_bytes > whole.peak_without_workspace_bytes
    assert whole.to_dict()["peak_without_workspace_bytes"] == least.peak_bytes


def test_the_peak_without_workspace_may_lie_elsewhere():
    births = [(0, "birth", 0, "weight", 100), (1, "birth", 1, "workspace", 900), (2, "death", 1, "workspace", 0)]
    profile = MemoryProfile.of([*births, (3, "birth", 2, "feature map", 300)])

    assert (1000, 400) == (profile.peak_bytes, profile.peak_without_workspace_bytes)
    assert 0 == MemoryProfile.of([]).peak_without_workspace_bytes


def test_a_job_that_does_not_fit_is_refused_with_what_to_cut():
    def build():
        layer = nn.Linear(2**16, 2**16, bias=False)
        return trained(layer, torch.randn(4, 2**16), optimizer=torch.optim.Adam(layer.parameters()))[0]

    profile = predict_memory(build)

    assert profile.by_category()["optimizer state"] == 2 * 2**34 + 4
    with pytest.raises(InputError, match=r"giant would need .* GiB at its peak, and there are 4.00 GiB") as refused:
        require_fit(profile.to_dict(), 4 * 2**30, "giant")
    assert "optimizer state" in refused.value.where
    assert "less state" in refused.value.fix


def test_a_running_job_is_ended_before_it_takes_more_than_it_may():
    with pytest.raises(InputError, match="more than it may"):
        track_memory(lambda: [torch.zeros(2**18) for _ in range(64)], limit_bytes=2**22)


def test_a_form_that_hangs_on_values_cannot_be_predicted():
    with pytest.raises(InputError, match=r"cannot be predicted without its values: what aten\.nonzero"):
        predict_memory(lambda: lambda: torch.ones(3, requires_grad=True).nonzero())


def test_nothing_is_left_behind():
    from torch.autograd.graph import saved_tensors_hooks
    from torch.nn.modules import module
    from torch.utils._python_dispatch import _get_current_dispatch_mode_stack
    from torch.utils.data.dataloader import _BaseDataLoaderIter

    def patched():
        functions = (saved_tensors_hooks.__init__, _BaseDataLoaderIter.__next__, torch.get_rng_state)
        return (*functions, torch.random.get_rng_state, len(module._global_forward_pre_hooks))

    before = patched()
    model = mlp([3, 3])
    step, optimizer = trained(model, torch.randn(2, 3))
    track_memory(step, model=model, optimizer=optimizer)

    assert before == patched()
    assert [] == _get_current_dispatch_mode_stack()
    assert not model[0]._forward_pre_hooks
    assert not model._forward_pre_hooks
    assert not model[0].weight._post_accumulate_grad_hooks


def test_a_profile_is_kept_and_read_again(tmp_path):
    model = mlp([3, 5, 2])
    profile = track_memory(trained(model, torch.randn(2, 3))[0], model=model, steps=2)
    path = profile.save(tmp_path / "run.memory.parquet")

    read = MemoryProfile.load(path)

    assert profile.events.to_pylist() == read.events.to_pylist()
    assert profile.to_dict() == read.to_dict()
    assert [path] == list(tmp_path.iterdir())
    with pytest.raises(InputError, match="is there already"):
        profile.save(path)
    newer = profile.events.replace_schema_metadata({"windtunnel": '{"schema": "windtunnel.memory/9"}'})
    import pyarrow.parquet as pq

    pq.write_table(newer, tmp_path / "newer.parquet")
    with pytest.raises(SchemaVersionError, match="memory/9"):
        MemoryProfile.load(tmp_path / "newer.parquet")


def test_layers_and_lines_sum_to_the_peak():
    model = mlp([9, 31, 5], nn.Tanh)
    profile = track_memory(trained(model, torch.randn(12, 9))[0], model=model)

    for table in (profile.by_layer(), profile.by_line()):
        assert profile.peak_bytes == sum(table.column("peak_bytes").to_pylist())
        assert all(row["peak_bytes"] <= row["most_bytes"] for row in table.to_pylist())
    assert profile.peak_bytes == sum(profile.alive_at_peak().column("size_bytes").to_pylist())
    assert profile.peak_bytes == sum(profile.by_category()[name] for name in CATEGORIES)
    assert profile.peak_bytes <= profile.peak_rounded_bytes <= profile.peak_reserved_bytes


SCRIPT = """
import torch
from torch.utils.data import DataLoader, TensorDataset
from torch import nn
data = TensorDataset(torch.randn(64, 6), torch.randint(0, 3, (64,)))
model = nn.Sequential(nn.Linear(6, 32), nn.ReLU(), nn.Linear(32, 3))
optimizer = torch.optim.Adam(model.parameters())
for _ in range(100):
    for inputs, labels in DataLoader(data, batch_size=8, num_workers=WORKERS):
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(inputs), labels)
        loss.backward()
        optimizer.step()
        total = loss.item()
raise RuntimeError("was not ended")
"""


@pytest.mark.parametrize("is_fake", [False, True])
def test_an_unmodified_script_is_followed(tmp_path, is_fake):
    from windtunnel.sources.memory.script import track_script

    path = tmp_path / "train.py"
    path.write_text(textwrap.dedent(SCRIPT.replace("WORKERS", "1" if is_fake else "0")))

    profile = track_script(path, fake=is_fake)

    weights = 4 * (7 * 32 + 33 * 3)
    assert weights == profile.at_most()["weight"] == profile.at_most()["gradient"]
    assert 2 * weights + 16 == profile.at_most()["optimizer state"]
    assert 8 * 32 * 4 + 8 * 3 * 4 + 8 * 4 >= profile.at_most()["feature map"] >= 8 * 32 * 4 + 8 * 3 * 4
    assert {8 * 6 * 4, 64} <= {row["size_bytes"] for row in rows(profile, category="input")}
    assert {"0", "1", "2"} <= {row["layer"] for row in rows(profile)}
    assert {"0", "2"} == {row["layer"] for row in rows(profile, category="weight")}
    assert any(row["line"].endswith("train.py:12") for row in rows(profile, phase="backward"))


def test_a_gpu_keeps_less_of_attention_and_dropout_and_has_a_workspace_per_thread():
    def build():
        heads = torch.randn(2, 4, 256, 64, requires_grad=True)

        def step():
            mixed = nn.functional.scaled_dot_product_attention(heads, heads, heads, dropout_p=0.1)
            nn.functional.dropout(mixed, 0.1).sum().backward()

        return step

    plain, on_gpu = predict_memory(build), predict_memory(build, chip=device("a100"))
    held = on_gpu.by_category()

    assert 2 * 8_519_680 == held["workspace"]
    assert "a100-sxm4-80g" == on_gpu.meta["chip"]
    scores = 4 * 2 * 4 * 256 * 256  # bytes of one matrix of attention, which no GPU keeps
    assert on_gpu.peak_bytes - held["workspace"] < plain.peak_bytes - scores


def test_an_lstm_on_a_gpu_keeps_its_gates_and_its_state_of_every_time_step():
    """A processor's library keeps three times as much, by which a prediction for a GPU was 16 % too large."""

    def build():
        layer, values = nn.LSTM(8, 16), torch.ones(10, 4, 8)
        return lambda: layer(values)[0].sum().backward()

    on_gpu = predict_memory(build, chip=device("a100"))
    gates_and_state = 10 * 4 * (4 * 16 + 16) * 4
    assert 1 == len(rows(on_gpu, size_bytes=gates_and_state))
    assert not rows(predict_memory(build), size_bytes=gates_and_state)
