"""A job under DDP whose optimizer works on slices trains as without them, in real processes over gloo."""

import re

import pytest

from windtunnel.flights.proof import unproven
from windtunnel.measure.workers import Workers
from windtunnel.sources.torch.live import LiveProgram
from windtunnel.systems.collectives.background import ring_plan
from windtunnel.systems.collectives.plan import Send
from windtunnel.testing import FlightContract

pytest.importorskip("torch")

RUNS = {
    "sgd": {"optimizer": "sgd"},
    "adam": {"optimizer": "adam"},
    "adamw": {"optimizer": "adamw"},
    "clipped": {"optimizer": "adam", "clips": 0.1},
    "accumulated": {"optimizer": "sgd", "accumulates": 3},
}
REFUSED = {
    "adafactor": ({"optimizer": "adafactor"}, "Adafactor may need more than a slice of a parameter"),
    "part": ({"optimizer": "part"}, "the optimizer updates .* parameters, and DDP averages"),
    "unused": ({"ddp": {"find_unused_parameters": True}}, "the model uses find_unused_parameters=True"),
    "scaled": ({"is_scaled": True}, "a GradScaler unscales the gradients of each rank"),
    "reduced twice": ({"accumulates": 2, "forgets_no_sync": True}, "gradients are reduced twice before an update"),
}


def train(num_ranks, configs):
    """What the ranks tell of each run."""
    with Workers("tests.systems.collectives.sliced_worker", configs, num_ranks=num_ranks, patience_s=120) as workers:
        return [workers.receive(rank) for rank in range(num_ranks)]


@pytest.fixture(scope="module")
def pair():
    plain = {f"{name} as it is": {**config, "is_sliced": False} for name, config in RUNS.items()}
    return train(2, {**RUNS, **plain, **{name: config for name, (config, _) in REFUSED.items()}})


@pytest.fixture(scope="module")
def three():
    return train(3, {"adamw": RUNS["adamw"], "adamw as it is": {**RUNS["adamw"], "is_sliced": False}})


@pytest.mark.parametrize("name", ["sgd", "adam", "adamw", "accumulated"])
def test_losses_and_weights_of_two_ranks_are_the_same_bits(pair, name):
    for rank in pair:
        assert rank[f"{name} as it is"]["losses"] == rank[name]["losses"]
        assert rank[f"{name} as it is"]["weights"] == rank[name]["weights"]


def test_losses_of_three_ranks_differ_by_rounding_only(three):
    for rank in three:
        assert rank["adamw"]["losses"] == pytest.approx(rank["adamw as it is"]["losses"], rel=1e-6)


def test_the_norm_of_all_slices_is_clipped_to_what_the_norm_of_all_gradients_is(pair):
    for rank in pair:
        assert rank["clipped"]["losses"] == pytest.approx(rank["clipped as it is"]["losses"], rel=1e-6)
        assert rank["clipped"]["losses"] != pytest.approx(rank["adam"]["losses"], rel=1e-3)


def test_each_rank_keeps_its_share_of_the_state_and_gets_all_of_it_back(pair, three):
    for ranks in (pair, three):
        total = ranks[0]["adamw as it is"]["state_bytes"]
        counted = sum(rank["adamw"]["state_bytes"] for rank in ranks)
        assert total == counted
        assert max(rank["adamw"]["state_bytes"] for rank in ranks) < 1.1 * total / len(ranks)
        assert {total} == {rank["adamw"]["state_bytes_after"] for rank in ranks}


def test_a_saved_optimizer_holds_the_state_of_all_ranks(pair):
    for name in ("sgd", "adamw"):
        expected = pair[0][f"{name} as it is"]["state"]
        for rank in pair:
            assert expected == pytest.approx(rank[name]["state"], rel=1e-5, abs=1e-6)


def test_every_bucket_is_reduce_scattered_once_per_step(pair):
    # two iterations pass before DDP has settled on its buckets, and a third shows that it has
    counts = pair[0]["adam"]["counts"]["reduce-scatters"]
    assert counts > 9
    assert counts % 9 == 0


@pytest.mark.parametrize("name", list(REFUSED))
def test_what_a_slice_cannot_do_is_refused_with_the_reason(pair, name):
    for rank in pair:
        assert re.search(REFUSED[name][1], rank[name]["error"])


def test_pieces_of_a_ring_cover_a_tensor_of_any_size_and_meet_by_tag():
    for size in (0, 1, 3, 10, 4096):
        for num_ranks in (1, 2, 3, 5):
            for is_gather in (False, True):
                plans = [ring_plan(rank, num_ranks, size, 3, is_gather) for rank in range(num_ranks)]
                items = [(rank, item) for rank, plan in enumerate(plans) for item in plan]
                sends = [(rank, item) for rank, item in items if isinstance(item, Send)]
                sent = {(rank, item.peer, item.tag, item.source.size) for rank, item in sends}
                received = {(item.peer, rank, item.tag, item.target.size) for rank, item in items
                            if not isinstance(item, Send)}  # fmt: skip

                assert sent == received
                assert (num_ranks - 1) * size == sum(elements for *_, elements in sent)
                assert len(sent) == len(sends)


class TestFlight(FlightContract):
    """In a job of one rank, whose slice is everything; the model is under DDP before the flight begins."""

    name = "sliced-optimizer"

    @pytest.fixture(autouse=True)
    def job(self, tmp_path):
        import torch.distributed as dist

        dist.init_process_group("gloo", init_method=f"file://{tmp_path / 'rendezvous'}", rank=0, world_size=1)
        yield
        dist.destroy_process_group()

    def program(self):
        import torch

        model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(4, 3))
        optimizer = torch.optim.AdamW(model.parameters())
        program = LiveProgram([model], [optimizer])

        def step():
            optimizer.zero_grad()
            loss = model(torch.ones(2, 4)).square().sum()
            loss.backward()
            optimizer.step()
            return loss.detach()

        return program, step

    def test_without_a_model_under_ddp_nothing_changes(self):
        import torch

        weight = torch.nn.Parameter(torch.ones(2))
        optimizer = torch.optim.SGD([weight], lr=0.5)
        with self.flight(LiveProgram([], [optimizer])):
            weight.grad = torch.ones(2)
            optimizer.step()

        assert [0.5, 0.5] == weight.tolist()

    def test_state_has_to_shrink_where_there_is_any(self):
        flights = [(self.plugin.function, {})]
        before = {"reduce-scatters": 0, "optimizer state bytes": 64}

        assert not unproven(before, {"reduce-scatters": 2, "optimizer state bytes": 32}, flights)
        assert "state bytes" in unproven(before, {"reduce-scatters": 2, "optimizer state bytes": 64}, flights)
        stateless = before | {"optimizer state bytes": 0}
        assert not unproven(stateless, {"reduce-scatters": 2, "optimizer state bytes": 0}, flights)
