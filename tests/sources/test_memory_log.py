"""Memory from the allocator's log: agreement with a tracker of operators, learnt lines, storages from elsewhere."""

from collections import Counter

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="needs the extra torch")
nn = torch.nn

from torch.utils._python_dispatch import TorchDispatchMode  # noqa: E402

from windtunnel.sources.memory.allocator_log import AllocatorLog, Change, Log  # noqa: E402
from windtunnel.sources.memory.observations import Learned  # noqa: E402
from windtunnel.sources.memory.tracker import StorageTracker  # noqa: E402
from windtunnel.sources.memory.tracking import track_memory  # noqa: E402
from windtunnel.sources.memory.watch import Watch, profile_of_tracker  # noqa: E402
from windtunnel.sources.torch.annotate import Discovery  # noqa: E402


class EmptyMode(TorchDispatchMode):
    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        return func(*args, **(kwargs or {}))


def residual():
    """A step whose backward pass adds gradients up."""
    torch.manual_seed(0)
    body, head, table = nn.Linear(32, 32), nn.Linear(32, 4), nn.Embedding(50, 32, sparse=True)
    dense = torch.optim.Adam([*body.parameters(), *head.parameters()])
    sparse = torch.optim.SGD(table.parameters(), lr=0.1)
    rows = torch.arange(16)

    def step():
        dense.zero_grad()
        sparse.zero_grad()
        hidden = table(rows)
        for _ in range(3):
            hidden = hidden + torch.tanh(body(hidden))
        head(hidden).logsumexp(dim=-1).sum().backward()
        dense.step()
        sparse.step()

    for _ in range(2):
        step()
    return step, Discovery().add([body, head, table], [dense, sparse])


def births(profile):
    last = {row["storage"]: row for row in profile.events.to_pylist() if row["event"] != "death"}
    return Counter(
        (row["size_bytes"], row["phase"], row["category"])
        for row in last.values()
        if row["category"] != "workspace" and row["size_bytes"]
    )


def logged(mode=None):
    step, discovery = residual()
    watch = Watch(workspace=True)
    watch.discovery = discovery
    with watch.learning():
        step()
    with watch:
        if mode is None:
            step()
        else:
            with mode:
                step()
    return watch.profile()


def test_a_tracker_of_operators_sees_the_same_births_by_size_phase_and_category():
    step, discovery = residual()
    with EmptyMode():  # as the learning iteration of the other: sparse gradients of before are copies then
        step()
    tracker = StorageTracker(discovery)
    tracker.start()
    step()
    tracker.stop()

    seen = births(profile_of_tracker(tracker, is_fake=False))

    assert seen.total() > 60
    assert seen == births(logged(EmptyMode()))


def test_a_dispatch_mode_changes_the_step_and_the_log_does_not():
    plain, changed = births(logged()), births(logged(EmptyMode()))

    # the sums of gradients are births only where a mode keeps autograd from adding in place
    assert changed.total() > plain.total()
    step, _ = residual()
    step()
    with AllocatorLog() as log:
        step()
    assert sum(block.is_within for block in log.read().blocks()) + plain.total() >= len(log.read().blocks())


def test_lines_are_given_in_order_and_only_where_the_numbers_are_the_same():
    learned = Learned([((2, "aten::mm", 8), "a.py:1"), ((2, "aten::mm", 4), "a.py:2"), ((3, "aten::mm", 8), "a.py:3")])

    assert ["a.py:1", "a.py:2"] == learned.lines([(2, "aten::mm", 16), (2, "aten::mm", 32)])
    assert ["", "a.py:2", ""] == learned.lines([(2, "aten::mm", 8), (2, "aten::mm", 4), (2, "aten::mm", 8)])
    assert [""] == learned.lines([(3, "aten::add", 8)])


def test_an_array_of_numpy_is_input_until_it_is_gone():
    model = nn.Linear(6, 2)

    def step():
        rows = torch.from_numpy(np.ones((4, 6), dtype=np.float32))
        model(rows * 1.0).sum().backward()
        del rows
        model.zero_grad()

    events = track_memory(step, model=model).events.to_pylist()

    (born,) = [row for row in events if row["event"] == "birth" and row["name"] == "tensor [4, 6]"]
    assert (96, "input") == (born["size_bytes"], born["category"])
    assert born["line"].startswith("tests/sources/test_memory_log.py:")
    assert any(row["event"] == "death" and row["storage"] == born["storage"] for row in events)


def test_blocks_that_die_within_their_call_are_workspace():
    def change(time_ns, size_bytes, address, call):
        return Change(time_ns, size_bytes, address, 0, call, "aten::mm", -2)

    log = Log([change(1, 64, 10, 1), change(2, 32, 11, 1), change(3, -64, 10, 1), change(9, -32, 11, 2)])

    scratch, result = log.blocks()
    assert scratch.is_within
    assert not result.is_within
    assert (3, 9) == (scratch.end_ns, result.end_ns)
    assert log.peak_bytes() == 96
    assert log.peak_bytes(since_ns=4) == 32
