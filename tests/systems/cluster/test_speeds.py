"""S of the spec's table, tables of speeds, and graphs."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as some

from tests.shared_data import shared_path
from windtunnel.cost.collective import hierarchical_all_reduce_ns
from windtunnel.errors import InputError, PriceError
from windtunnel.graph import EdgeKind, GraphBuilder, Phase, ResourceKind
from windtunnel.hardware import Link, Topology
from windtunnel.search.shapes import all_reduce_ns, canonical, parse_shape, shape_text
from windtunnel.search.speeds import (
    GraphSpeeds,
    LayerSpeeds,
    Profile,
    TableSpeeds,
    read_profile,
    read_profiles,
    read_speed_table,
)

LINKS = (Link("machine", 50e9), Link("rack", 1.25e9, 5000), Link("network", 1.25e9, 50_000))
PUBLISHED = {
    "vgg11": (0.930160, 0.669410, 0.667624, 0.249596),
    "resnet50": (0.989851, 0.935519, 0.923462, 0.703749),
    "resnet18": (0.989027, 0.930812, 0.919832, 0.687877),
    "alexnet": (0.876431, 0.518718, 0.515544, 0.150402),
    "mobilenet_v3": (0.966269, 0.780066, 0.569847, 0.361774),
}
SHAPES = ("8", "4+4", "4|4", "1+1+1+1+1+1+1+1")


@pytest.mark.parametrize("model", PUBLISHED)
def test_speeds_are_those_of_the_table(model):
    speeds = LayerSpeeds(read_profiles(shared_path("cluster/dally/layers")), LINKS)

    found = [speeds.speed(model, 0, parse_shape(text)) for text in SHAPES]

    assert list(PUBLISHED[model]) == pytest.approx(found, abs=0.6e-6)  # six digits, and sums of whole ns


@given(some.integers(1, 8), some.integers(1, 4), some.integers(1, 3), some.integers(1, 10**9))
def test_even_shapes_are_priced_as_the_hierarchical_collective(per_machine, machines, racks, size):
    shape = ((per_machine,) * machines,) * racks
    expected = hierarchical_all_reduce_ns(size, Topology((per_machine, machines, racks), LINKS))

    for rule in ("exact", "flat"):
        assert abs(expected - all_reduce_ns(size, shape, LINKS, rule)) <= 8


@pytest.mark.parametrize(
    ("text", "sizes"),
    [
        ("2+2|2+2", [(4, 1, 1.0), (2, 2, 0.25)]),  # machines of all racks: 4 == 8 / 2, one flat ring
        ("9+7", [(8, 0, 1.0), (2, 1, 0.125)]),  # divides, so it is taken as 8 + 8
        ("8+8+8+7", [(31, 1, 1.0)]),
        ("2|1", [(3, 2, 1.0)]),
    ],
)
def test_the_published_rule_keeps_its_two_flaws(text, sizes):
    from windtunnel.cost.collective import ring_all_reduce_ns

    size = 10**8
    expected = sum(ring_all_reduce_ns(size * share, count, LINKS[tier]) for count, tier, share in sizes)

    assert expected == pytest.approx(all_reduce_ns(size, parse_shape(text), LINKS, "published"), abs=4)


def test_the_flat_rule_is_the_harshest():
    shape = parse_shape("9+7")

    assert all_reduce_ns(10**8, shape, LINKS, "flat") > all_reduce_ns(10**8, shape, LINKS, "exact")


@given(some.lists(some.lists(some.integers(1, 8), min_size=1, max_size=4), min_size=1, max_size=4))
def test_a_shape_comes_back_from_its_text(racks):
    assert canonical(racks) == parse_shape(shape_text(canonical(racks)))


def layers(num=4, size=10**7):
    times = np.full(num, 1e6)
    return Profile("net", 32, times, times, times, np.full(num, size))


def test_overlap_hides_what_it_can_and_no_more():
    """Sums beside the backward pass: between all of them added and none."""
    shape = parse_shape("4+4")
    for size in (10**6, 10**7, 10**8):
        added = LayerSpeeds({"net": layers(size=size)}, LINKS).speed("net", 0, shape)
        hidden = LayerSpeeds({"net": layers(size=size)}, LINKS, overlap=True).speed("net", 0, shape)
        assert added < hidden <= 1
    busy = 4 * all_reduce_ns(10**8, shape, LINKS)  # the network is never idle: its time is the step
    assert 12e6 / busy == pytest.approx(hidden, rel=0.15)


def test_compute_grows_with_the_batch_and_gradients_do_not():
    speeds = LayerSpeeds({"net": layers()}, LINKS)
    small, large = (speeds.speed("net", batch, ((4, 4),)) for batch in (16, 64))

    assert (1 / small - 1) == pytest.approx(4 * (1 / large - 1))
    assert 1.0 == speeds.speed("net", 16, ((1,),))


def step(num=3):
    builder = GraphBuilder()
    gpu, last = builder.resource("gpu", ResourceKind.STREAM), -1
    for phase in (Phase.FORWARD, Phase.BACKWARD, Phase.UPDATE):
        for layer in range(num):
            has = {"param_bytes": 4_000_000} if phase == Phase.FORWARD else {}
            task = builder.task(f"{phase.name} {layer}", duration_ns=10**6, phase=phase, layer=f"layer{layer}",
                                resource=gpu, iteration=0, rank=0, **has)  # fmt: skip
            if last >= 0:
                builder.edge(last, task, kind=EdgeKind.ORDER)
            last = task
    return builder.build({"source": "a test"})


def test_a_graph_of_one_device_is_slower_the_further_it_is_spread():
    speeds = GraphSpeeds({"net": step()}, LINKS)
    one, machines, racks = (speeds.speed("net", 0, parse_shape(text)) for text in ("8", "4+4", "4|4"))

    assert 1 > one > machines > racks > 0
    with pytest.raises(PriceError, match="nothing is known of the model 'other'"):
        speeds.speed("other", 0, ((2,),))


TABLE = "model,shape,gpus,seconds_compute,seconds_exposed,source\n"


def test_a_table_says_what_was_measured(tmp_path):
    path = tmp_path / "speeds.csv"
    path.write_text(TABLE + "vgg,4+4,8,1.0,0.25,me\nvgg,8,8,1.0,0.0,me\n")
    speeds = read_speed_table(path)

    assert 0.8 == speeds.speed("VGG", 64, ((4, 4),))
    with pytest.raises(PriceError, match=r"vgg has no speed on 4\+3") as refused:
        speeds.speed("vgg", 0, ((4, 3),))
    assert "4+4, 8" in refused.value.fix
    with pytest.raises(PriceError, match="nothing is known of the model 'bert'"):
        speeds.speed("bert", 0, ((4, 3),))


def test_speeds_above_one_are_kept_and_named():
    speeds = TableSpeeds({("vgg", ((4, 4),)): 1.02, ("vgg", ((8,),)): 0.9})

    assert 1.02 == speeds.speed("vgg", 0, ((4, 4),))
    assert ["vgg 4+4"] == speeds.faster_than_ideal


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("vgg,4x4,8,1,0,me", "'4x4' is no shape"),
        ("vgg,4+4,7,1,0,me", "as many GPUs"),
        ("vgg,4+4,8,0,0,me", "compute is above 0"),
        ("vgg,4+4,8,1,-2,me", "'-2' is no number of -1 or more"),
        ("vgg,4+4,8", "not as many fields"),
    ],
)
def test_a_row_that_means_nothing_is_named(tmp_path, line, message):
    path = tmp_path / "speeds.csv"
    path.write_text(TABLE + line + "\n")

    with pytest.raises(InputError, match=message) as refused:
        read_speed_table(path)
    assert "line 2" in refused.value.where


def test_layer_tables_need_a_batch_in_their_names(tmp_path):
    path = tmp_path / "vgg.csv"
    path.write_text("layer\n")
    with pytest.raises(InputError, match="says no batch"):
        read_profile(path)
    with pytest.raises(InputError, match="no layer tables"):
        read_profiles(tmp_path / "nothing")
    with pytest.raises(InputError, match="no rule of shapes"):
        LayerSpeeds({}, LINKS, rule="round")
