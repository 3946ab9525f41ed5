import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from windtunnel.errors import InputError
from windtunnel.systems.tensor_programs.model.encoding import (
    END,
    MAX_LEAVES,
    bucket_batches,
    encode,
    positional_encoding,
    serialize,
)
from windtunnel.systems.tensor_programs.model.nest import Buffer, For, If, Nest, Store

BUFFERS = {"x": Buffer("x", (1,))}
STORE = Store("x", (0,), 1.0)


def test_published_serialization():
    """A loop with a store and a loop with a store."""
    nest = Nest((For("i", 2, (STORE, For("j", 2, (STORE,)))),), BUFFERS)

    serialized, leaf_ids = serialize(nest)

    assert serialized.tolist() == [0, 1, 2, -1, 3, 4, -1, -1, -1, -1]
    assert leaf_ids.tolist() == [2, 4]
    assert encode(nest).positions.tolist() == [2, 5]


def test_guards_are_transparent():
    plain = Nest((For("i", 2, (STORE, STORE)),), BUFFERS)
    guarded = Nest((For("i", 2, (If(("lt", "i", 1), (STORE,), (STORE,)),)),), BUFFERS)

    assert serialize(plain)[0].tolist() == serialize(guarded)[0].tolist()


def test_published_angles():
    expected = [0.141120, -0.895910, 0.678109, -0.540480, 0.941596, -0.139623]

    np.testing.assert_allclose(positional_encoding(np.array(3))[:6], expected, atol=1e-6)


trees = st.recursive(
    st.just(STORE), lambda inner: st.lists(inner, max_size=3).map(lambda body: For("i", 2, tuple(body))), max_leaves=12
)


@given(st.lists(trees, max_size=3))
def test_every_node_is_opened_and_closed(nodes):
    serialized, leaf_ids = serialize(Nest(tuple(nodes), BUFFERS))

    opened = serialized[serialized != END]
    assert opened.tolist() == list(range(len(opened)))
    assert (serialized == END).sum() == len(opened)
    depth = np.cumsum(np.where(serialized == END, -1, 1))
    assert depth[-1] == 0
    assert (depth[:-1] > 0).all()
    assert set(leaf_ids) <= set(opened)


def test_without_store_or_with_too_many():
    with pytest.raises(InputError, match="stores nothing"):
        encode(Nest((For("i", 2, ()),), BUFFERS, "empty"))
    assert encode(Nest((STORE,) * MAX_LEAVES, BUFFERS)).features.shape[0] == MAX_LEAVES
    with pytest.raises(InputError, match="17 stores"):
        encode(Nest((STORE,) * (MAX_LEAVES + 1), BUFFERS, "unrolled"))


@given(st.lists(st.integers(1, 6), min_size=1, max_size=60), st.integers(2, 8), st.integers(0, 3))
def test_batches_hold_one_number_of_leaves(num_leaves, batch_size, seed):
    num_leaves = np.array(num_leaves)

    batches = list(bucket_batches(num_leaves, batch_size, seed))

    assert sorted(np.concatenate(batches)) == list(range(len(num_leaves)))
    for batch in batches:
        assert len(set(num_leaves[batch])) == 1
        alone = (num_leaves == num_leaves[batch[0]]).sum() == 1
        assert len(batch) > 1 or alone
        assert len(batch) <= batch_size + 1
