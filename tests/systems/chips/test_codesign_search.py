"""The search over chips against planning for every chip."""

import numpy as np
import pytest

from windtunnel.errors import InfeasibleError, InputError
from windtunnel.hardware.templates import Templates
from windtunnel.systems.chips.answer import Answer, chip_name, find_shared_chip
from windtunnel.systems.chips.cheapest import cheapest
from windtunnel.systems.chips.layers import Layer, Layers, PhaseWork
from windtunnel.systems.chips.model import ChipSpace, Model, layer_times
from windtunnel.systems.chips.networks import Expert
from windtunnel.systems.chips.operations import FUSED, TENSOR, VECTOR, Operations
from windtunnel.systems.chips.search import Search
from windtunnel.systems.chips.stages import Job


def work(random, degree, sum_bytes):
    """A product, a vector operator beside another product, and one that reads both."""
    operations = Operations.of([TENSOR, VECTOR, FUSED, VECTOR], [(0, 1), (0, 2), (1, 3), (2, 3)], ("a", "b", "c", "d"))
    side = int(random.integers(60, 400))
    products = np.array([[1, side, 512, 64 // degree], [0] * 4, [2, side, 96, 128 // degree], [0] * 4], np.int64)
    vectors = np.array([[0, 0], [side * 512, 2], [2 * side * 96, 1], [side * 300, 10]], np.int64)
    return PhaseWork(operations, products, vectors, sum_bytes * (degree > 1), np.zeros(4, np.int64))


def model(seed, microbatch=1):
    def layer(random, name, degree):
        params = int(random.integers(1, 9)) * 1_000_000 // degree
        kept = int(random.integers(1, 9)) * 100_000 * microbatch // degree
        forward, backward = work(random, degree, 1000), work(random, degree, 1000)
        return Layer(name, forward, backward, params, 2 * kept, kept, kept // 2)

    by_degree = {}
    for degree in (1, 2):
        random = np.random.default_rng(seed)
        layers = tuple(layer(random, name, degree) for name in ("embedding", "layer", "head"))
        by_degree[degree] = Layers(layers, np.array([0, 1]), np.array([1, 2]), np.array([5000, 5000]), degree)
    return Model("small", microbatch, by_degree, depth=4)


def space(seed=0, num=40):
    random = np.random.default_rng(seed)
    columns = [2 ** random.integers(low, high, num) for low, high in ((0, 9), (2, 8), (2, 8), (0, 9), (2, 8))]
    return ChipSpace(Templates.of(*columns, 2 ** random.integers(21, 28, num)))


def search(seed=0, chips=None, **job):
    options = {"num_devices": 12, "bandwidth_bytes_per_s": 1e9} | job
    models = {one: model(seed, one) for one in (1, 2)}
    return Search(models, chips or space(), Job(**options), batch_size=32, memories=(2e7, 6e7))


def every(one):
    """Throughput of every chip with its fastest plan, one by one."""
    found = np.zeros(len(one.space))
    for case in one.cases:
        for chip in range(len(one.space)):
            plan = case.stages.best(*case.layers_of(chip))
            if plan is not None:
                found[chip] = max(found[chip], one.batch_size / plan.batch_s)
    return found


@pytest.mark.parametrize("tolerance", [0.0, 0.1])
@pytest.mark.parametrize("seed", range(3))
def test_bounds_lose_no_chip(seed, tolerance):
    """Every chip is no faster than one of the front that is no larger and takes no more energy with its own plan."""
    one = search(seed)
    yields, area = every(one), one.space.area_um2
    found = one.run(tolerance=tolerance)
    ratio = (1 + tolerance) ** 2 * (1 + 1e-9)

    assert yields.max() == pytest.approx(found.best.samples_per_s, rel=1e-12)
    assert found.bound_samples_per_s >= found.best.samples_per_s * (1 - 1e-9)
    for chip in range(40):
        no_larger = [other for other in found.front if other.area_um2 <= area[chip] * (1 + 1e-12)]
        assert any(
            other.samples_per_s * ratio >= yields[chip]
            and max(case.energy_j(np.array([chip]), other.plan)[0] for case in one.cases) * ratio >= other.energy_j
            for other in no_larger
        )


def test_choosing_both_is_no_worse_than_choosing_one():
    one, expert = search(2), Expert(2, 3, 2)
    on_first, both = one.plans_of(0), one.run().best

    assert one.chips_for(expert, [0]).samples_per_s <= one.chips_for(expert).samples_per_s
    assert one.chips_for(expert, [0]).samples_per_s <= on_first.samples_per_s
    assert max(one.chips_for(expert).samples_per_s, on_first.samples_per_s) <= both.samples_per_s * (1 + 1e-12)
    assert every(search(2))[0] == pytest.approx(on_first.samples_per_s, rel=1e-12)


def test_a_given_plan_yields_what_each_chip_alone_says():
    one, expert = search(3), Expert(2, 3, 1)
    best = max((one.chips_for(expert, [chip]) for chip in range(40)), key=lambda choice: choice.samples_per_s)

    assert best.samples_per_s == pytest.approx(one.chips_for(expert).samples_per_s, rel=1e-12)


def test_one_chip_for_several_networks_is_the_best_of_all_chips():
    answers = []
    for seed in (0, 5):
        one = search(seed)
        found = one.run()
        answers.append(Answer(f"net{seed}", {"both": found.best}, {}, found, one, {"both": one.space.templates}))
    shared = find_shared_chip(answers)

    shares = np.exp(np.mean([np.log(one / one.max()) for one in (every(search(seed)) for seed in (0, 5))], axis=0))
    assert shares.max() == pytest.approx(shared.share, rel=1e-9)
    assert {"net0", "net5"} == set(shared.choices)


@pytest.mark.parametrize("share", [0.2, 0.7, 0.999])
@pytest.mark.parametrize("seed", range(3))
def test_no_cheaper_chip_yields_as_much(seed, share):
    """Against planning for every chip in every setting."""
    one = search(seed)
    goal = share * every(one).max()
    costs = {"area": [], "energy": []}
    for case in one.cases:
        for chip in range(len(one.space)):
            plan = case.stages.best(*case.layers_of(chip))
            if plan is not None and one.batch_size / plan.batch_s >= goal:
                costs["area"].append(one.space.area_um2[chip])
                costs["energy"].append(case.energy_j(np.array([chip]), plan)[0])
    small, frugal = cheapest(search(seed), goal), cheapest(search(seed), goal, "energy")

    assert min(costs["area"]) == small.choice.area_um2
    assert min(costs["energy"]) == pytest.approx(frugal.choice.energy_j, rel=1e-9)
    assert min(small.choice.samples_per_s, frugal.choice.samples_per_s) >= goal * (1 - 1e-9)
    assert small.num_planned <= small.num_possible == 40 * len(one.cases)
    with pytest.raises(InfeasibleError, match="no chip yields"):
        cheapest(search(seed), 1.001 * every(one).max())


@pytest.mark.parametrize("is_recomputed", [False, True])
def test_energy_counts_the_forward_pass_again_where_it_is_done_again(is_recomputed):
    """Every stage but the last computes its activations once more."""
    seen = 0
    for case in search(2).cases:
        plan = case.stages.best(*case.layers_of(3))
        if plan is None or plan.is_recomputed != is_recomputed:
            continue
        plain = 0.0
        for place, stage in enumerate(plan.stages):
            column = case.stages.network.degrees.index(stage.degree)
            for layer in stage.layers:
                forward, backward = (one[3, case.distinct[layer], column] for one in case.joules)
                again = forward if is_recomputed and place < len(plan.stages) - 1 else 0.0
                plain += stage.num_devices * (forward + again + backward)
        seen += len(plan.stages) > 1
        assert case.energy_j(np.array([3]), plan)[0] == pytest.approx(plain / case.setting.microbatch)
    assert seen


def test_a_rate_is_above_zero():
    with pytest.raises(InputError, match="samples per s"):
        cheapest(search(), 0.0)


def test_no_schedule_is_below_the_bound_and_peaks_are_not_slower():
    for name in ("forward", "backward"):
        chips = space()
        tiled = layer_times(model(0), chips, 1e9)
        assert (getattr(tiled, f"min_{name}_PUT") <= getattr(tiled, f"{name}_PUT") * (1 + 1e-12)).all()
        peak = layer_times(model(0), ChipSpace(chips.templates, mode="peak"), 1e9)
        assert (getattr(peak, f"min_{name}_PUT") <= getattr(tiled, f"{name}_PUT") * (1 + 1e-12)).all()


def test_memory_that_is_too_small_names_the_layer():
    with pytest.raises(InfeasibleError, match=r"layer .* needs .* more than there is"):
        Search({1: model(0)}, space(), Job(num_devices=4), batch_size=8, memories=(1000.0,))


def test_a_chip_has_a_name_that_spells_it_out():
    assert "phaze:8x128x64+2x32+4MiB" == chip_name(Templates.of(8, 128, 64, 2, 32, 2**22), 0)
