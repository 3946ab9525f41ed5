"""A flight proves that its change took place, or gives no receipt."""

import pytest

from windtunnel import registry
from windtunnel.errors import FlightError
from windtunnel.flights import Ledger, verify
from windtunnel.flights.proof import Witness, becomes, differs, proven_by, rises, scales, unproven
from windtunnel.measure import StopRule
from windtunnel.sources.torch.live import LiveProgram

torch = pytest.importorskip("torch")

BRIEF = StopRule(rounds=3, min_rounds=3, precision=0.5, turn_ns=5_000_000, time_limit_s=20)
DRAWS_ITS_BATCHES = """
import torch

model = torch.nn.Sequential(torch.nn.Linear(32, 64), torch.nn.ReLU(), torch.nn.Linear(64, 8))
optimizer = torch.optim.Adam(model.parameters())
inputs, targets = torch.randn(512, 32), torch.randint(0, 8, (512,))
for _ in range(100_000):
    rows = torch.randint(0, 512, (16,))
    loss = torch.nn.functional.cross_entropy(model(inputs[rows]), targets[rows])
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
"""


def flight(*claims):
    @proven_by(*claims)
    def change(program, *, factor=2.0, threads=1):
        """Nothing."""

    return change


def seen(step, program, **settings):
    counts = {}
    with Witness(program, **settings).watching(1, counts):
        step()
    return counts


@pytest.mark.parametrize("name", sorted(registry.all("flight")))
def test_every_flight_says_what_it_must_move(name):
    assert registry.get("flight", name).function.claims


@pytest.mark.parametrize(
    ("claim", "before", "after", "is_proven"),
    [
        (rises("operators"), {"operators": 3}, {"operators": 4}, True),
        (rises("operators"), {"operators": 3}, {"operators": 3}, False),
        (differs("operators"), {"operators": 3}, {"operators": 2}, True),
        (differs("operators"), {}, {}, False),
        (becomes("threads", "threads"), {"threads": 2}, {"threads": 1}, True),
        (becomes("threads", "threads"), {"threads": 1}, {"threads": 1}, False),
        (scales("samples", lambda given: given["factor"]), {"samples": 100}, {"samples": 200}, True),
        (scales("samples", lambda given: given["factor"]), {"samples": 100}, {"samples": 190}, True),
        (scales("samples", lambda given: given["factor"]), {"samples": 100}, {"samples": 100}, False),
        (scales("samples", lambda given: given["factor"]), {"samples": 100}, {"samples": 50}, False),
        (scales("samples", lambda given: given["factor"]), {}, {}, False),
        (scales("samples", lambda _: 2.0, instead="elements"), {"elements": 5}, {"elements": 10}, True),
    ],
)
def test_a_claim_holds_where_its_count_moved(claim, before, after, is_proven):
    assert is_proven is not bool(unproven(before, after, [(flight(claim), {})]))


def test_a_flight_without_claims_must_change_something_that_is_counted():
    silent = flight()

    assert "nothing" in unproven({"operators": 3}, {"operators": 3}, [(silent, {})])
    assert not unproven({"operators": 3}, {"operators": 4}, [(silent, {})])


def test_counts_are_of_one_iteration():
    model = torch.nn.Linear(4, 8)
    optimizer = torch.optim.SGD(model.parameters(), foreach=True)
    inputs = torch.randn(16, 4)

    def step():
        model(inputs).sum().backward()
        optimizer.step()

    counts = {}
    with Witness(LiveProgram([model], [optimizer])).watching(2, counts):
        step()
        step()

    assert (64, 1) == (counts["input elements"], counts["updates"])
    assert counts["updates of many tensors"] > 0
    assert 0 == counts["low-precision operators"]


def test_two_loaders_of_two_workers_each_have_two_workers():
    """A loader for training and one for testing; a flight changes both."""
    loaders = [torch.utils.data.DataLoader(range(4), num_workers=num) for num in (2, 2)]
    before, after = ({"workers": 0.0}, seen(lambda: None, LiveProgram([]), loaders=loaders))

    assert 2 == after["workers"]
    assert "" == becomes("workers", "num_workers")(before, after, {"num_workers": 2})


def test_precision_and_layout_are_seen():
    model = torch.nn.Conv2d(3, 4, 3)
    images = torch.randn(2, 3, 8, 8)
    program = LiveProgram([model])
    plain = seen(lambda: model(images), program)
    laid_out = seen(lambda: model(images.contiguous(memory_format=torch.channels_last)), program)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        low = seen(lambda: model(images), program)

    assert plain["channels-last operators"] < laid_out["channels-last operators"]
    assert plain["low-precision operators"] < low["low-precision operators"]


def test_what_a_compiler_makes_is_left_alone():
    model = torch.nn.Linear(4, 4)
    counts = seen(lambda: model(torch.randn(2, 4)), LiveProgram([model]), sees_operators=False)

    assert "operators" not in counts


def test_another_batch_size_of_a_script_that_draws_its_own_gives_no_receipt(tmp_path):
    """Its loader cannot be told; a receipt would say twice the samples per second for nothing."""
    script, ledger = tmp_path / "train.py", tmp_path / "receipts.db"
    script.write_text(DRAWS_ITS_BATCHES)

    with pytest.raises(FlightError, match="changed nothing") as refusal:
        verify(script, "batch-size", rule=BRIEF, ledger=ledger)
    assert "512 without it, 512 with it" in refusal.value.where
    assert [] == Ledger(ledger).receipts()
