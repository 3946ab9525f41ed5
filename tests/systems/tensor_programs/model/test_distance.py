import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from windtunnel.systems.tensor_programs.model.distance import (
    central_moment_discrepancy,
    cmd_terms,
)

A = np.array([[0.0, 0.0], [1.0, 0.0]])
B = np.array([[0.0, 0.0], [0.0, 1.0], [0.0, 0.5]])


def test_published_terms():
    expected = [0.7071068, 0.3004626, 0, 0.0751157, 0]

    np.testing.assert_allclose(cmd_terms(A, B), expected, atol=1e-6)
    assert central_moment_discrepancy(A, B) == pytest.approx(1.0826850, abs=1e-6)


@given(st.integers(0, 100))
def test_no_distance_to_itself_and_symmetric(seed):
    generator = np.random.default_rng(seed)
    X, Y = generator.random((7, 3)), generator.random((5, 3))

    for distance in (central_moment_discrepancy,):
        assert distance(X, X) == pytest.approx(0, abs=1e-12)
        assert distance(X, Y) == pytest.approx(distance(Y, X))
        assert distance(X, Y) >= -1e-12


def test_tensors_give_the_same_with_finite_gradients():
    torch = pytest.importorskip("torch")
    for distance in (central_moment_discrepancy,):
        a = torch.tensor(A, requires_grad=True)
        value = distance(a, torch.tensor(B))
        value.backward()
        assert float(value.detach()) == pytest.approx(distance(A, B))
        assert torch.isfinite(a.grad).all()
        same = torch.tensor(A, requires_grad=True)
        distance(same, torch.tensor(A)).backward()
        assert torch.isfinite(same.grad).all()
