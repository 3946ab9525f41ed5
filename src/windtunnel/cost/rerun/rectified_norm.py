"""Batch normalization and ReLU in one operator: what "reconstructed-batchnorm" prices and flies.

In: a batch, N x C x S. Out: normalized and rectified, and the gradients of both together. Forward reads the batch
twice and writes once; backward reads the same tensors twice and writes once: the rectifier has no traffic of its
own. Channels are independent, so that they may run on several threads.

Source: Jung et al., Restructuring batch normalization to accelerate CNN training, MLSys 2019.
"""

# N samples, C channels, S places of one channel in one sample

from __future__ import annotations

from typing import Any

import numba
import numpy as np
import torch

from windtunnel.measure.threads import match_torch_threads

__all__ = ["RectifiedNorm"]

ONE: Any = np.float32(1)
ZERO: Any = np.float32(0)  # sums of one channel in one sample are float32, sums over samples float64


def _forward(x: Any, weight: Any, bias: Any, eps: float, leak: Any, y: Any, mean: Any, variance: Any) -> None:
    N, C, S = x.shape
    for channel in numba.prange(C):
        total = 0.0
        squares = 0.0
        for sample in range(N):
            part = ZERO
            square = ZERO
            for index in range(S):
                value = x[sample, channel, index]
                part += value
                square += value * value
            total += part
            squares += square
        mean[channel] = total / (N * S)
        variance[channel] = max(squares / (N * S) - (total / (N * S)) ** 2, 0.0)
        slope = np.float32(weight[channel] / np.sqrt(variance[channel] + eps))
        offset = np.float32(bias[channel] - mean[channel] * slope)
        for sample in range(N):
            for index in range(S):
                value = slope * x[sample, channel, index] + offset
                y[sample, channel, index] = max(value, ZERO) + leak * min(value, ZERO)


def _backward(
    dy: Any,
    x: Any,
    y: Any,
    weight: Any,
    mean: Any,
    variance: Any,
    eps: float,
    leak: Any,
    dx: Any,
    dweight: Any,
    dbias: Any,
) -> None:
    N, C, S = x.shape
    for channel in numba.prange(C):
        center = np.float32(mean[channel])
        inverse = 1.0 / np.sqrt(variance[channel] + eps)
        total = 0.0
        product = 0.0
        for sample in range(N):
            part = ZERO
            partial_product = ZERO
            for index in range(S):
                # where the output is not positive the rectifier let only the leak through
                gradient = dy[sample, channel, index] * (ONE if y[sample, channel, index] > 0 else leak)
                part += gradient
                partial_product += gradient * (x[sample, channel, index] - center)
            total += part
            product += partial_product
        dbias[channel] = total
        dweight[channel] = product * inverse
        slope = np.float32(weight[channel] * inverse)
        average = np.float32(total / (N * S))
        pull = np.float32(product * inverse * inverse / (N * S))
        for sample in range(N):
            for index in range(S):
                gradient = dy[sample, channel, index] * (ONE if y[sample, channel, index] > 0 else leak)
                dx[sample, channel, index] = slope * (gradient - average - (x[sample, channel, index] - center) * pull)


# sums may be reordered: training on a CPU promises no order of them either; what diverges gives NaN, as torch does
_KERNELS = {
    name: {
        is_parallel: numba.njit(
            function, fastmath=True, error_model="numpy", nogil=True, cache=True, parallel=is_parallel
        )
        for is_parallel in (False, True)
    }
    for name, function in (("forward", _forward), ("backward", _backward))
}


def _run(name: str, *arguments: Any) -> None:
    with match_torch_threads() as threads:
        _KERNELS[name][threads > 1](*arguments)


class RectifiedNorm(torch.autograd.Function):
    """``leaky_relu(batch_norm(x))`` of a training batch; also gives its mean and variance for the running ones.

    A leak of 0 is a ReLU, one of 1 is no rectifier.
    """

    @staticmethod
    def forward(
        context: Any, x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor, eps: float, leak: float
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Normalize and rectify."""
        y, mean, variance = torch.empty_like(x), torch.empty_like(bias), torch.empty_like(bias)
        _run(
            "forward",
            _planes(x),
            weight.numpy(),
            bias.numpy(),
            eps,
            np.float32(leak),
            _planes(y),
            mean.numpy(),
            variance.numpy(),
        )
        context.save_for_backward(x, y, weight, mean, variance)
        context.eps, context.leak = eps, np.float32(leak)
        context.mark_non_differentiable(mean, variance)
        return y, mean, variance

    @staticmethod
    def backward(
        context: Any, dy: torch.Tensor, *_unused: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, None, None]:
        """Gradients of input, weight and bias."""
        x, y, weight, mean, variance = context.saved_tensors
        dx, dweight, dbias = torch.empty_like(x), torch.empty_like(weight), torch.empty_like(weight)
        batch = (_planes(dy.contiguous()), _planes(x), _planes(y))
        channels = (weight.detach().numpy(), mean.numpy(), variance.numpy())
        _run("backward", *batch, *channels, context.eps, context.leak, _planes(dx), dweight.numpy(), dbias.numpy())
        return dx, dweight, dbias, None, None


def _planes(tensor: torch.Tensor) -> Any:
    return tensor.detach().view(tensor.shape[0], tensor.shape[1], -1).numpy()
