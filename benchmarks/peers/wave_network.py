"""Kernels that each GPU runs with other code, by a network used as a ratio (benchmarks, after Habitat).

In: measured operators (shapes, device, bound, time) of one kind on several GPUs. Out: ``RatioNetwork``: from a time on
an origin to a time on a target by what the network says of both, so that an error that it makes on both cancels. The
preset ``paper`` predicts times as published, the default an efficiency against the bound. Not here: kernels whose
code stays the same (``wave``).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import ArrayLike, NDArray

from windtunnel.base.extras import require
from windtunnel.errors import InputError
from windtunnel.hardware import Device

if TYPE_CHECKING:
    import torch

__all__ = ["PRESETS", "Operators", "RatioNetwork", "RatioSettings", "device_features", "fit_ratio_network"]

# P operators, S sizes
Floats = NDArray[np.float64]
Progress = Callable[[str, int, int], None]


@dataclass(frozen=True, slots=True)
class RatioSettings:
    """How a network looks and learns.

    Parameters
    ----------
    target : str
        ``efficiency``: the logarithm of bound over time; ``latency``: milliseconds.
    num_layers, width : int
        Hidden layers, ReLU.
    learning_rate, late_learning_rate : float
        Adam's, before and after half of the epochs.
    weight_decay : float
    batch_size, num_epochs : int
    """

    target: str = "efficiency"
    num_layers: int = 3
    width: int = 128
    learning_rate: float = 2e-3
    late_learning_rate: float = 4e-4
    weight_decay: float = 1e-4
    batch_size: int = 512
    num_epochs: int = 30


PRESETS = {
    "small": RatioSettings(),
    "paper": RatioSettings("latency", 8, 1024, 5e-4, 1e-4, 1e-4, 512, 80),
}
"""``paper``: Habitat, USENIX ATC 2021, section 3.4 and its released code."""


@dataclass(frozen=True, eq=False)
class Operators:
    """P operators of one kind.

    Parameters
    ----------
    sizes_PS : float [P, S]
        All above zero, such as batch, rows, contraction, columns.
    device_PF : float [P, 4]
        As of :func:`device_features`.
    bound_ns : float [P]
        Least time on that device.
    duration_ns : float [P], optional
        Measured; NaN where it is to be predicted.
    """

    sizes_PS: Floats
    device_PF: Floats
    bound_ns: Floats
    duration_ns: Floats

    def __len__(self) -> int:
        return len(self.bound_ns)


def device_features(device: Device) -> Floats:
    """Memory in GB, bandwidth in GB/s, units, fp32 TFLOP/s [4].

    Raises
    ------
    InputError
        The device has no fp32 peak.
    """
    rates = (device.bandwidth_bytes_per_s / 1e9, float(device.num_units), device.flops_per_s("fp32") / 1e12)
    return np.array([device.memory_bytes / 1e9, *rates])


@dataclass(frozen=True, eq=False)
class RatioNetwork:
    """A trained network.

    Parameters
    ----------
    settings : RatioSettings
    mean_F, std_F : float [S + 4]
        Of the training rows' features.
    network : torch.nn.Sequential
    """

    settings: RatioSettings
    mean_F: Floats
    std_F: Floats
    network: torch.nn.Sequential

    def duration_ns(self, operators: Operators) -> Floats:
        """Predicted times [P]."""
        import torch

        features = (_features(operators, self.settings) - self.mean_F) / self.std_F
        with torch.inference_mode():
            found = self.network(torch.as_tensor(features, dtype=torch.float32)).squeeze(1).numpy().astype(np.float64)
        if self.settings.target == "latency":
            return np.asarray(np.maximum(1e6 * found, 1.0), dtype=np.float64)
        return np.asarray(operators.bound_ns * np.exp(np.clip(-found, -20, 20)))

    def transfer_ns(self, measured_ns: ArrayLike, origin: Operators, target: Operators) -> Floats:
        """Times on the target [P] from those on the origin: measured x predicted(target) / predicted(origin)."""
        return np.asarray(measured_ns) * self.duration_ns(target) / self.duration_ns(origin)


def fit_ratio_network(
    operators: Operators,
    settings: RatioSettings = PRESETS["small"],
    *,
    seed: int = 0,
    progress: Progress | None = None,
) -> RatioNetwork:
    """Train on measured operators of several devices.

    Parameters
    ----------
    operators : Operators
    settings : RatioSettings
    seed : int
        Of weights and batches.
    progress : callable, optional
        Called with (what, done, total).

    Raises
    ------
    InputError
        A time, bound or size is not above zero, or the target is unknown.
    MissingExtraError
        PyTorch is not installed.

    Notes
    -----
    The loss is the mean relative error, of times as published, of the ratio of both efficiencies otherwise.
    """
    require("torch", extra="torch")
    import torch

    _check(operators, settings)
    features = _features(operators, settings)
    mean, std = features.mean(axis=0), features.std(axis=0)
    std[std == 0] = 1.0
    inputs = torch.as_tensor((features - mean) / std, dtype=torch.float32)
    took = torch.as_tensor(operators.duration_ns, dtype=torch.float64)
    is_latency = settings.target == "latency"
    goal = took / 1e6 if is_latency else torch.log(torch.as_tensor(operators.bound_ns) / took)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        network = _network(inputs.shape[1], settings)
        with torch.no_grad():
            network[-1].bias.fill_(float(goal.median()))  # type: ignore[operator]
        loss = _relative if is_latency else _relative_of_logs
        _train(network, inputs, goal.float(), loss, settings, progress)
    return RatioNetwork(settings, mean, std, network.eval())


def _check(operators: Operators, settings: RatioSettings) -> None:
    if settings.target not in ("efficiency", "latency"):
        raise InputError(f"unknown target {settings.target!r}", where="target", fix="use efficiency or latency")
    columns = {"duration_ns": operators.duration_ns, "bound_ns": operators.bound_ns, "sizes": operators.sizes_PS}
    for name, column in columns.items():
        bad = np.argwhere(~(np.isfinite(column) & (column > 0)))
        if len(bad):
            raise InputError(f"{name} must be above zero", where=f"operator {bad[0][0]}", fix="leave the row out")
    if not len(operators):
        raise InputError("there are no operators to learn from", where="operators")


def _features(operators: Operators, settings: RatioSettings) -> Floats:
    features = np.column_stack([operators.sizes_PS, operators.device_PF])
    return features if settings.target == "latency" else np.log2(features)


def _network(num_inputs: int, settings: RatioSettings) -> torch.nn.Sequential:
    from torch import nn

    layers: list[nn.Module] = []
    for place in range(settings.num_layers):
        layers += [nn.Linear(num_inputs if place == 0 else settings.width, settings.width), nn.ReLU()]
    return nn.Sequential(*layers, nn.Linear(settings.width, 1))


def _relative(found: torch.Tensor, goal: torch.Tensor) -> torch.Tensor:
    return ((found - goal).abs() / goal).mean()


def _relative_of_logs(found: torch.Tensor, goal: torch.Tensor) -> torch.Tensor:
    return (found - goal).abs().mean()


def _train(
    network: torch.nn.Sequential,
    inputs: torch.Tensor,
    goal: torch.Tensor,
    loss: Callable[[torch.Tensor, torch.Tensor], torch.Tensor],
    settings: RatioSettings,
    progress: Progress | None,
) -> None:
    import torch

    optimizer = torch.optim.Adam(network.parameters(), settings.learning_rate, weight_decay=settings.weight_decay)
    for epoch in range(settings.num_epochs):
        if epoch == settings.num_epochs // 2:
            optimizer.param_groups[0]["lr"] = settings.late_learning_rate
        for rows in torch.randperm(len(inputs)).split(settings.batch_size):
            optimizer.zero_grad()
            error = loss(network(inputs[rows]).squeeze(1), goal[rows])
            error.backward()
            optimizer.step()
        if progress is not None:
            progress("training", epoch + 1, settings.num_epochs)
