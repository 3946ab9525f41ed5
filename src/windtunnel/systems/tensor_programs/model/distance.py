"""How far two sets of vectors lie apart: samples of two domains in, one number out.

The central moment discrepancy (CMD) compares means and central moments; the maximum mean discrepancy (MMD) compares
sums of Gaussian kernels. Both take numpy arrays or torch tensors (then with gradients). Not here: what is compared.

Source: Zellinger et al. (ICLR 2017); CDMPP (EuroSys 2024), section 5.
"""

# A and B: [num_samples, width]

from __future__ import annotations

from typing import Any

__all__ = ["central_moment_discrepancy", "cmd_terms", "maximum_mean_discrepancy"]

NUM_MOMENTS = 5
KERNEL_FACTORS = (1.0, 0.1, 0.001)


def _norm(vector: Any) -> Any:
    # a tensor's gradient of the square root at zero is infinite, a small floor keeps it finite
    squares = (vector * vector).sum()
    return (squares + 1e-30) ** 0.5 if hasattr(squares, "requires_grad") else squares**0.5


def cmd_terms(A: Any, B: Any, num_moments: int = NUM_MOMENTS) -> list[Any]:
    """Norm of the difference of means, then of each central moment from the second on."""
    mean_a, mean_b = A.mean(0), B.mean(0)
    centered_a, centered_b = A - mean_a, B - mean_b
    power_a, power_b = centered_a, centered_b
    terms = [_norm(mean_a - mean_b)]
    for _ in range(2, num_moments + 1):
        power_a, power_b = power_a * centered_a, power_b * centered_b
        terms.append(_norm(power_a.mean(0) - power_b.mean(0)))
    return terms


def central_moment_discrepancy(A: Any, B: Any, num_moments: int = NUM_MOMENTS) -> Any:
    """CMD of samples that lie in an interval of length 1 per entry."""
    return sum(cmd_terms(A, B, num_moments))


def maximum_mean_discrepancy(A: Any, B: Any) -> Any:
    """MMD with the sum of three Gaussian kernels: ``mean(K_AA) - 2 mean(K_AB) + mean(K_BB)``."""
    return _mean_kernel(A, A) - 2 * _mean_kernel(A, B) + _mean_kernel(B, B)


def _mean_kernel(A: Any, B: Any) -> Any:
    squared = (A * A).sum(1)[:, None] + (B * B).sum(1)[None, :] - 2 * A @ B.T
    exponential = _exponential(squared)
    return sum(exponential(-factor * squared).mean() for factor in KERNEL_FACTORS)


def _exponential(values: Any) -> Any:
    if hasattr(values, "exp"):
        return type(values).exp
    import numpy as np

    return np.exp
