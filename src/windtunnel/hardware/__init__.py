"""What runs the work: devices, links, machines, clusters, and a first catalog of them.

In: names, or this host. Out: frozen values with units in their names. May not enter: one user's measurements.
"""

from windtunnel.hardware.accelerator_sheet import accelerators
from windtunnel.hardware.accelerators import Accelerator
from windtunnel.hardware.catalog import (
    bandwidth_ratio,
    device,
    devices,
    efficiency_ratios,
    instance,
    instances,
    link,
    links,
    machine,
    machines,
    recognize,
    target,
    topology,
)
from windtunnel.hardware.fabric import Fabric, fabric_of
from windtunnel.hardware.parts import Device, Link, Topology
from windtunnel.hardware.sheet import read_sheet
from windtunnel.hardware.systems import Instance, Machine, Target
from windtunnel.hardware.templates import Templates, area_um2, template_space

__all__ = [
    "Accelerator",
    "Device",
    "Fabric",
    "Instance",
    "Link",
    "Machine",
    "Target",
    "Templates",
    "Topology",
    "accelerators",
    "area_um2",
    "bandwidth_ratio",
    "device",
    "devices",
    "efficiency_ratios",
    "fabric_of",
    "instance",
    "instances",
    "link",
    "links",
    "machine",
    "machines",
    "read_sheet",
    "recognize",
    "target",
    "template_space",
    "topology",
]
