"""How far two sets of vectors lie apart: samples of two domains in, one number out.

The central moment discrepancy (CMD) compares means and central moments of numpy arrays or of torch tensors (then with
gradients). Not here: what is compared.

Source: Zellinger et al. (ICLR 2017); CDMPP (EuroSys 2024), section 5.
"""

# A and B: [num_samples, width]

from __future__ import annotations

from typing import Any

__all__ = ["central_moment_discrepancy", "cmd_terms"]

NUM_MOMENTS = 5


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
