"""One color per meaning, the same in every chart, every timeline and every export.

In: a kind, a phase, a category of memory. Out: a color that readers who see fewer colors can tell from its
neighbors (Okabe and Ito's set for what a task does, Tol's muted set for the part of the step it belongs to).
No picture uses color alone: every color comes with a label or hatching.
"""

from __future__ import annotations

from windtunnel.graph import Kind, Phase

__all__ = [
    "IDLE",
    "KIND_COLORS",
    "KIND_LABELS",
    "MEMORY_COLORS",
    "PASS_COLORS",
    "PASS_LABELS",
    "PHASE_COLORS",
    "PHASE_LABELS",
]

IDLE = "#dfe3e8"
_INPUT = "#e69f00"
_OTHER = "#8c939b"

KIND_COLORS = {
    Kind.HOST: "#56b4e9",
    Kind.COMPUTE: "#0072b2",
    Kind.COMM: "#d55e00",
    Kind.COPY: "#cc79a7",
    Kind.IO: _INPUT,
    Kind.SYNC: _OTHER,
    Kind.VIRTUAL: "#b9bfc6",
}
KIND_LABELS = {
    Kind.HOST: "host",
    Kind.COMPUTE: "compute",
    Kind.COMM: "communication",
    Kind.COPY: "copy",
    Kind.IO: "input",
    Kind.SYNC: "waiting calls",
    Kind.VIRTUAL: "virtual",
}
PHASE_COLORS = {
    Phase.DATA: _INPUT,
    Phase.FORWARD: "#44aa99",
    Phase.BACKWARD: "#332288",
    Phase.UPDATE: "#cc6677",
    Phase.OTHER: _OTHER,
}
MEMORY_COLORS = {  # by category, from the bottom of a stack up
    "weight": "#0072b2",
    "optimizer state": "#cc6677",
    "gradient": "#332288",
    "input": _INPUT,
    "feature map": "#44aa99",
    "temporary": _OTHER,
    "workspace": "#ddcc77",
}
PHASE_LABELS = {
    Phase.DATA: "data",
    Phase.FORWARD: "forward",
    Phase.BACKWARD: "backward",
    Phase.UPDATE: "update",
    Phase.OTHER: "other",
}
# passes of a pipeline, alternately dark and light
PASS_COLORS = {"F": "#44aa99", "B": "#332288", "I": "#0072b2", "W": "#ddcc77"}
PASS_LABELS = {"F": "forward", "B": "backward", "I": "backward: its input", "W": "backward: its weights"}
