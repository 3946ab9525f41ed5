"""Our own plug-ins keep the contracts that others inherit; what-ifs do so in tests/whatifs."""

from __future__ import annotations

import importlib.util
from typing import ClassVar

import numpy as np
import pytest

from tests.sources.test_chakra import CPU, node, written
from tests.sources.test_msccl import GOOD, algorithm
from tests.sources.test_msccl import written as algorithm_file
from windtunnel import hardware
from windtunnel.cost import Work
from windtunnel.graph import GraphBuilder, ResourceKind, save
from windtunnel.testing import CostModelContract, FlightContract, SourceContract, WorkloadContract

needs_torch = pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="needs the extra torch")


class TestChakra(SourceContract):
    name = "chakra"

    def files(self, folder):
        return [written(folder, node(1, attrs=CPU), node(2, data=[1], attrs=CPU))]


class TestMsccl(SourceContract):
    name = "msccl"

    def files(self, folder):
        return [algorithm_file(folder, algorithm(*GOOD))]


class TestStored(SourceContract):
    name = "stored"

    def files(self, folder):
        builder = GraphBuilder()
        builder.task("work", resource=builder.resource("cpu", ResourceKind.HOST_THREAD), duration_ns=7)
        return [save(builder.build({"source": "a test"}), folder / "graph.wt")]


class TestRoofline(CostModelContract):
    name = "roofline"

    def work(self):
        names = np.array(["gemm", "relu", "unknown"], dtype=object)
        return Work.of_counts(names, np.array([1e9, 0.0, 0.0]), np.array([1e6, 1e6, 0.0]))

    def device(self):
        return hardware.device("a100-sxm4-40g")


@needs_torch
class TestMlp(WorkloadContract):
    name = "mlp"
    parameters: ClassVar = {"batch_size": 4, "width": 8, "depth": 1}


class LiveContract(FlightContract):
    """Flights over a small network."""

    def program(self):
        from tests.flights.test_changes import program

        return program()


def flight_contract(name, parameters):
    """For a flight that changes a live program, and not how it is built."""
    return needs_torch(type(f"Test {name}", (LiveContract,), {"name": name, "parameters": parameters}))


FLIGHTS = {
    "activation-checkpointing": {},
    "block-circulant": {"k": 4},
    "channels-last": {},
    "foreach-optimizer": {},
    "fused-optimizer": {},
    "gc-pauses": {},
    "group-norm": {},
    "threads": {"threads": 1},
}
globals().update({f"Test_{name}": flight_contract(name, given) for name, given in FLIGHTS.items()})
