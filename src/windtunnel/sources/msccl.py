"""Algorithms of collectives in MSCCL's XML -> graphs.

In: an ``algo`` document: what every thread block of every GPU sends, receives, adds and copies. Out: a graph of all
ranks with a task per send, receive and local work. Nothing has a duration: such a file knows no link. Not here: prices,
algorithms of our own (``comm``).
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

from windtunnel import registry
from windtunnel.base.reading import ReadLimit, format_value, read_decompressed
from windtunnel.errors import TraceError
from windtunnel.graph import EdgeKind, Graph, Kind, Meta, ProcessGroup, ResourceKind
from windtunnel.sources.chakra.nodes import read_head
from windtunnel.sources.execution_trace.reader import UNMEASURED

__all__ = ["is_msccl", "load_msccl"]

_MIB = 1 << 20
_EDGE = ("src", "dst", "kind", "from_start")
_MOST = 1 << 20  # numbers beyond mean a damaged file
_BYTES_PER_TEXT_BYTE = 40
# what a step does, one task after the other
_STEPS = {
    "s": ("send",), "r": ("recv",), "rrc": ("recv", "reduce"), "rrs": ("recv", "reduce", "send"),
    "rrcs": ("recv", "reduce", "send"), "rcs": ("recv", "send"), "re": ("reduce",), "cpy": ("copy",), "nop": ("nop",),
}  # fmt: skip
_KINDS = {"send": Kind.COMM, "recv": Kind.COMM, "reduce": Kind.COMPUTE, "copy": Kind.COMPUTE, "nop": Kind.VIRTUAL}
_NODES = {"send": "COMM_SEND_NODE", "recv": "COMM_RECV_NODE", "nop": "METADATA_NODE"}


def is_msccl(path: Path) -> bool:
    """Whether the file begins as an MSCCL algorithm does."""
    head = read_head(path)
    return bool(re.match(rb"\s*(<\?xml[^>]*>\s*)?(<!--.*?-->\s*)*<algo\s", head, re.DOTALL)) and b"ngpus" in head


@dataclass(frozen=True, slots=True)
class _Step:
    """One step of a thread block, as the file has it."""

    gpu: int
    block: int
    number: int
    kind: str
    chunks: int
    after: tuple[int, int] | None  # block and step of the same GPU


@dataclass(frozen=True, slots=True)
class _Block:
    """A thread block: the peers that it sends to and receives from, and the channel; -1 for no peer."""

    gpu: int
    number: int
    send: int
    recv: int
    channel: int
    steps: tuple[_Step, ...]


@registry.source(
    "msccl",
    source="MSCCL, Microsoft: XML of collective algorithms; Cowan et al., MSCCLang, ASPLOS 2023",
    sniff=is_msccl,
)
def load_msccl(path: str | Path, *, message_bytes: int = _MIB, read_limit: int | None = None) -> Graph:
    """Load an algorithm for one message.

    A step becomes a SEND, a RECV, local work, or several of them one after the other. Steps of a thread block follow
    each other, a step waits for the step of another block that it names, and the k-th receive of a channel between two
    GPUs begins no sooner than the k-th send.

    Parameters
    ----------
    path : str or Path
        ``.xml``, packed with gzip or not.
    message_bytes : int
        Of the whole collective, one MiB by default; a chunk is the ``nchunksperloop``-th part of it.
    read_limit : int, optional
        The most bytes of memory that reading may take (`windtunnel.base.reading.ReadLimit`).

    Returns
    -------
    Graph
        Every duration is 0 and ``cost_source`` "unmeasured".

    Raises
    ------
    TraceError
        The file is cut or no algorithm, a number is missing, a step is of an unknown type or depends on one that is not
        there, or sends and receives do not match; names GPU, block and step.
    GraphError
        The steps wait for each other in a circle: the algorithm hangs.
    """
    path = Path(path)
    root = _document(path, read_limit)
    blocks = list(_blocks(root, str(path)))
    chunk_bytes = message_bytes // _number(root, "nchunksperloop", str(path), least=1)
    rows, first, last = _tasks(blocks, chunk_bytes)
    edges = [*_orders(blocks, first, last, str(path)), *_messages(rows, str(path))]
    count = _number(root, "ngpus", str(path), least=1)
    names = [f"rank {block.gpu} block {block.number}" for block in blocks]
    return Graph.from_columns(
        tasks={name: [row[name] for row in rows] for name in rows[0]},
        edges={name: [edge[index] for edge in edges] for index, name in enumerate(_EDGE)},
        resources={
            "name": names, "kind": [int(ResourceKind.STREAM)] * len(names), "discipline": [0] * len(names),
            "slots": [1] * len(names), "machine": [block.gpu for block in blocks],
        },
        meta=Meta(
            source="msccl",
            trace={"file": path.name, "collective": root.get("coll", ""), "algorithm": root.get("name", "")},
            num_unmeasured_tasks=len(rows),
            world_size=count,
            groups=(ProcessGroup("", tuple(range(count))),),
        ),
    )  # fmt: skip


def _document(path: Path, read_limit: int | None) -> ElementTree.Element:
    limit = ReadLimit(path, read_limit)
    data = bytes(read_decompressed(limit))
    limit.check(_BYTES_PER_TEXT_BYTE * len(data), error=TraceError)
    if b"<!DOCTYPE" in data or b"<!ENTITY" in data:  # which could make gigabytes of a few lines
        raise TraceError("an algorithm declares no types or entities", where=str(path), fix="remove the declaration")
    try:
        root = ElementTree.fromstring(data)  # noqa: S314 - without declarations nothing is expanded
    except (ElementTree.ParseError, ValueError) as error:
        raise TraceError(f"the XML is damaged: {error}", where=str(path), fix="write or copy the file again") from error
    if root.tag != "algo" or not len(root):
        raise TraceError(
            f"this is no algorithm but {format_value(root.tag)}", where=str(path), fix="name an MSCCL file"
        )
    return root


def _number(element: ElementTree.Element, name: str, where: str, least: int = -1) -> int:
    text = element.get(name, "")
    if not re.fullmatch(r"-?\d{1,9}", text) or not least <= int(text) <= _MOST:
        raise TraceError(
            f"{name} of <{element.tag}> is {format_value(text)}",
            where=where,
            fix=f"it is a whole number, {least} or more",
        )
    return int(text)


def _blocks(root: ElementTree.Element, where: str) -> Iterator[_Block]:
    seen = set()
    for gpu in root.iter("gpu"):
        gpu_id = _number(gpu, "id", where, least=0)
        for block in gpu.iter("tb"):
            number = _number(block, "id", f"{where}: gpu {gpu_id}", least=0)
            if (gpu_id, number) in seen:
                raise TraceError(f"gpu {gpu_id} has two blocks {number}", where=where, fix="number blocks apart")
            seen.add((gpu_id, number))
            location = f"{where}: gpu {gpu_id}, tb {number}"
            steps = tuple(_step(item, gpu_id, number, location) for item in block.iter("step"))
            send, recv, channel = (_number(block, name, location) for name in ("send", "recv", "chan"))
            yield _Block(gpu_id, number, send, recv, channel, steps)
    if not seen:
        raise TraceError("no gpu has a thread block", where=where, fix="name an MSCCL file")


def _step(step: ElementTree.Element, gpu: int, block: int, where: str) -> _Step:
    number = _number(step, "s", where, least=0)
    kind = step.get("type", "")
    if kind not in _STEPS:
        raise TraceError(
            f"a step of type {format_value(kind)}", where=f"{where}, step {number}", fix=f"known: {', '.join(_STEPS)}"
        )
    other, its_step = (_number(step, name, f"{where}, step {number}") for name in ("depid", "deps"))
    chunks = _number(step, "cnt", f"{where}, step {number}", least=0)
    return _Step(gpu, block, number, kind, chunks, (other, its_step) if other >= 0 and its_step >= 0 else None)


def _tasks(blocks: list[_Block], chunk_bytes: int) -> tuple[list[dict[str, Any]], dict[Any, int], dict[Any, int]]:
    """Tasks as rows, and the first and last of each step by (gpu, block, step)."""
    rows: list[dict[str, Any]] = []
    first, last = {}, {}
    for resource, block in enumerate(blocks):
        for step in block.steps:
            first[step.gpu, step.block, step.number] = len(rows)
            for op in _STEPS[step.kind]:
                is_message = op in ("send", "recv")
                rows.append(
                    {
                        "name": f"{_NODES.get(op, 'COMP_NODE')}_tb{step.block}_step{step.number}",
                        "op": op,
                        "kind": int(_KINDS[op]),
                        "rank": block.gpu,
                        "peer": {"send": block.send, "recv": block.recv}.get(op, -1),
                        "tag": block.channel if is_message else -1,
                        "message_bytes": chunk_bytes * step.chunks if is_message else 0,
                        "resource": resource,
                        "duration_ns": 0,
                        "cost_source": UNMEASURED,
                    }
                )
            # a step may be several tasks: others wait for its last one, and it waits with its first one
            last[step.gpu, step.block, step.number] = len(rows) - 1
    if not rows:
        raise TraceError("no thread block has a step", where="every gpu", fix="name an MSCCL file")
    return rows, first, last


def _orders(
    blocks: list[_Block], first: dict[Any, int], last: dict[Any, int], where: str
) -> Iterator[tuple[int, int, int, bool]]:
    """Steps after the steps before them, within a step its parts, and after the steps that they name."""
    for block in blocks:
        own = [row for step in block.steps for row in range(first[_key(step)], last[_key(step)] + 1)]
        yield from ((before, after, int(EdgeKind.DATA), False) for before, after in itertools.pairwise(own))
        for step in block.steps:
            if step.after is None or step.after[0] == block.number:
                continue
            if (block.gpu, *step.after) not in last:
                raise TraceError(
                    f"step {step.number} waits for step {step.after[1]} of tb {step.after[0]}, which is not there",
                    where=f"{where}: gpu {block.gpu}, tb {block.number}",
                    fix="write the algorithm again",
                )
            yield last[block.gpu, *step.after], first[_key(step)], int(EdgeKind.DATA), False


def _key(step: _Step) -> tuple[int, int, int]:
    return step.gpu, step.block, step.number


def _messages(rows: list[dict[str, Any]], where: str) -> Iterator[tuple[int, int, int, bool]]:
    """The k-th receive of each channel begins no sooner than the k-th send there."""
    sends: dict[tuple[int, int, int], list[int]] = {}
    recvs: dict[tuple[int, int, int], list[int]] = {}
    for number, row in enumerate(rows):
        if row["op"] == "send":
            sends.setdefault((row["rank"], row["peer"], row["tag"]), []).append(number)
        elif row["op"] == "recv":
            recvs.setdefault((row["peer"], row["rank"], row["tag"]), []).append(number)
    for src, dst, channel in sorted(sends.keys() | recvs.keys()):
        sent, received = sends.get((src, dst, channel), []), recvs.get((src, dst, channel), [])
        if len(sent) != len(received):
            raise TraceError(
                f"gpu {src} sends {len(sent)} times to gpu {dst} on channel {channel}, which receives "
                f"{len(received)} times",
                where=where,
                fix="write the algorithm again; it would hang",
            )
        for item, other in zip(sent, received, strict=True):
            if rows[item]["message_bytes"] != rows[other]["message_bytes"]:
                raise TraceError(
                    f"{rows[item]['name']} of gpu {src} and {rows[other]['name']} of gpu {dst} differ in cnt",
                    where=where,
                    fix="write the algorithm again",
                )
            yield item, other, int(EdgeKind.MESSAGE), True
