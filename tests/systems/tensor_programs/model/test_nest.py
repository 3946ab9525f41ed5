import gzip
import json

import pytest
from benchmarks.peers.nest_text import nest_from_printed

from tests.shared_data import shared_path
from tests.systems.tensor_programs.model.golden_nests import around, load
from windtunnel.errors import InputError
from windtunnel.systems.tensor_programs.model.encoding import encode
from windtunnel.systems.tensor_programs.model.nest import (
    Allocate,
    Buffer,
    For,
    If,
    Nest,
    Store,
    stores,
)


def test_both_sides_of_a_guard_are_stores():
    store = Store("x", ("i",), 1.0)
    nest = Nest(around((If(("lt", "i", 3), (store,), (store,)),), ("i", 8)), {"x": Buffer("x", (8,))})

    assert len(list(stores(nest.body))) == 2


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ((Store("y", (0,), 1.0),), "buffer 'y'"),
        ((Store("x", (0, 0), 1.0),), "1 dimensions"),
        ((Store("x", ("i",), 1.0),), "no enclosing loop"),
        ((Store("x", (0,), ("pow", 1.0, 2.0)),), "unknown operation 'pow'"),
        ((For("i", 0, ()),), "extent 0"),
        ((For("i", 2, (), kind="thread", thread="warp"),), "bound to 'warp'"),
        ((Allocate("y"),), "allocates 'y'"),
    ],
)
def test_broken_rules_are_named(body, message):
    with pytest.raises(InputError, match=message):
        Nest(body, {"x": Buffer("x", (4,))}, "bad")


def test_unknown_type_is_named():
    with pytest.raises(InputError, match="float31"):
        Nest((), {"x": Buffer("x", (4,), "float31")})


def test_vector_index_becomes_a_vectorized_loop():
    store = {"k": "store", "buf": "y", "idx": "ramp((i*16), 1, 16)", "value": "(x16(2f)*x.global[ramp((i*16), 1, 16)])"}
    loop = {"k": "parallel", "var": "i", "min": "0", "ext": 4, "c": [store]}

    nest = nest_from_printed({"k": "func", "name": "scale", "args": ["x.global", "y"], "c": [loop]})

    lane = ("add", ("mul", "i", 16), "lane")
    expected = Store("y", (lane,), ("mul", 2.0, load("x.global", lane)))
    assert nest.body == around((expected,), ("i", 4, "parallel"), ("lane", 16, "vectorized"))
    assert nest.buffers["x.global"].shape == (64,)


def test_printed_text_that_is_no_expression():
    with pytest.raises(InputError, match="not an expression"):
        nest_from_printed({"k": "func", "name": "f", "c": [{"k": "store", "buf": "x", "idx": "0", "value": "1 +* 2"}]})


@pytest.mark.parametrize(("device", "encoded"), [("cpu", 96), ("cuda", 104)])
def test_every_printed_program_of_a_network_is_read(device, encoded):
    """ResNet-50's 120 programs; the ones that are unrolled by hand have more than 16 stores and are refused by name."""
    path = shared_path(f"cost/cdmpp/resnet50_tir_{device}_ast.json.gz")
    functions = json.loads(gzip.decompress(path.read_bytes()))
    num_encoded = 0
    for function in functions.values():
        nest = nest_from_printed(function)
        if len(list(stores(nest.body))) <= 16:
            num_encoded += encode(nest).features.shape[0] > 0
        else:
            with pytest.raises(InputError, match="at most 16"):
                encode(nest)

    assert len(functions) == 120
    assert num_encoded >= encoded
