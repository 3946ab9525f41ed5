"""Masks of layers in one file: what is zero of a layer's input and of its output's gradient.

In: records, or a file. Out: ``ZeroRecords``, written to and read from one compressed npz: ``header`` is JSON with the
layers' names, iterations and sizes, ``N/X_bits`` and ``N/dY_bits`` are packed bits [pixels, bytes], channels along them
from the lowest bit on. Needs no torch. Not here: watching a training (``watch``), cycles (``cost``).
"""

from __future__ import annotations

import json
import zipfile
import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from windtunnel.base import bitmaps
from windtunnel.base.outputs import whole
from windtunnel.errors import InputError, SchemaVersionError

__all__ = ["SCHEMA", "LayerRecord", "ZeroRecords", "read_zeros"]

SCHEMA = "windtunnel.zeros/1"
_KINDS = ("convolution", "linear")
_EIGHTHS = 8


@dataclass(frozen=True)
class LayerRecord:
    """One layer in one iteration.

    Parameters
    ----------
    layer : str
        Path of the module, as in a captured graph.
    iteration : int
        Of the training, from 0 on.
    kind : str
        ``convolution`` or ``linear``.
    inputs, weight : tuple of int
        Shapes of the input, as far as it was kept, and of the weight.
    outputs : tuple of int
        Shape of the output.
    stride, padding, dilation : (int, int)
    groups : int
    is_masked : bool
        Whether the input has zeros and nothing below: a ReLU made it, and masks its gradient.
    is_first : bool
        Whether no operator needs the gradient of the input.
    X_bits, dY_bits : uint32 [pixels, words]
        Bits of what is not zero.
    """

    layer: str
    iteration: int
    kind: str
    inputs: tuple[int, ...]
    weight: tuple[int, ...]
    outputs: tuple[int, ...]
    stride: tuple[int, int]
    padding: tuple[int, int]
    dilation: tuple[int, int]
    groups: int
    is_masked: bool
    is_first: bool
    X_bits: NDArray[np.uint32]
    dY_bits: NDArray[np.uint32]

    @property
    def input_density(self) -> float:
        """Share of the input that is not zero."""
        return bitmaps.count(self.X_bits) / max(int(np.prod(self.inputs)), 1)

    @property
    def gradient_density(self) -> float:
        """Share of the output's gradient that is not zero."""
        return bitmaps.count(self.dY_bits) / max(int(np.prod(self.outputs)), 1)

    def about(self) -> dict[str, Any]:
        """All but the bits, by field."""
        return {key: value for key, value in vars(self).items() if not key.endswith("_bits")}

    def summary(self) -> dict[str, Any]:
        """What a graph keeps of it: sizes, and densities overall, by eighths of channels and of pixels, by density."""
        result = self.about()
        for name, words, shape in (("input", self.X_bits, self.inputs), ("gradient", self.dY_bits, self.outputs)):
            bits = bitmaps.unpack(words, shape[1])
            result[name] = {
                "density": round(float(bits.mean()), 6),
                "of_channels": _eighths(bits.mean(axis=0)),
                "of_pixels": _eighths(bits.mean(axis=1)),
            }
        return result


def _eighths(densities: NDArray[np.float64]) -> list[float]:
    """Mean of each eighth of them, from the least on; as many as there are where those are fewer."""
    parts = np.array_split(np.sort(densities), min(_EIGHTHS, len(densities)))
    return [round(float(part.mean()), 6) for part in parts]


@dataclass(frozen=True)
class ZeroRecords:
    """Masks of a training.

    Parameters
    ----------
    program : str
        What was trained.
    records : tuple of LayerRecord
        By iteration, in the order in which layers are called.
    skipped : mapping of str to int
        Layers that were not recorded, by reason.
    """

    program: str
    records: tuple[LayerRecord, ...]
    skipped: Mapping[str, int]

    @property
    def iterations(self) -> tuple[int, ...]:
        """In which there are records."""
        return tuple(sorted({record.iteration for record in self.records}))

    def at(self, iteration: int | None = None) -> tuple[LayerRecord, ...]:
        """Records of an iteration; of the last by default.

        Raises
        ------
        InputError
            There are none.
        """
        requested = self.iterations[-1:] if iteration is None else (iteration,)
        result = tuple(record for record in self.records if record.iteration in requested)
        if not result:
            raise InputError(
                f"no masks of iteration {iteration} were kept", where=self.program, fix=f"kept: {self.iterations}"
            )
        return result

    def summary(self) -> dict[str, Any]:
        """Of the last iteration, by layer, as a graph keeps it."""
        return {item.layer: item.summary() for item in self.at()}

    def save(self, path: Path) -> None:
        """Write one file, whole or not at all."""
        arrays: dict[str, Any] = {}
        for number, record in enumerate(self.records):
            for name in ("X_bits", "dY_bits"):
                words = getattr(record, name)
                arrays[f"{number}/{name}"] = np.ascontiguousarray(words).astype("<u4", copy=False).view(np.uint8)
        layers = [item.about() for item in self.records]
        header = {"schema": SCHEMA, "program": self.program, "skipped": dict(self.skipped), "layers": layers}
        with whole(path) as scratch, scratch.open("wb") as file:
            np.savez_compressed(file, header=np.array(json.dumps(header)), **arrays)


def read_zeros(path: Path) -> ZeroRecords:
    """Read a file of masks.

    Raises
    ------
    InputError
        It is not there, is no such file, or its bits are of another shape than it says.
    SchemaVersionError
        A newer version wrote it.
    """
    if not path.is_file():
        raise InputError(f"there is no file {path}", where=str(path.resolve()), fix="windtunnel capture --zeros SCRIPT")
    try:
        with path.open("rb") as file, np.load(file, allow_pickle=False) as stored:
            header = json.loads(str(stored["header"]))
            _check_schema(header, path)
            records = tuple(_records(header["layers"], stored, path))
    except (
        OSError,
        EOFError,
        LookupError,
        TypeError,
        ValueError,
        AttributeError,
        zipfile.BadZipFile,
        zlib.error,
    ) as error:
        if isinstance(error, InputError):
            raise
        raise InputError(f"no masks can be read: {error}", where=str(path), fix="record them anew") from error
    if not records:
        raise InputError("the file holds no masks", where=str(path), fix="record them anew")
    return ZeroRecords(str(header.get("program", "")), records, dict(header.get("skipped", {})))


def _check_schema(header: Any, path: Path) -> None:
    schema = str(header.get("schema", "")) if isinstance(header, dict) else ""
    if schema == SCHEMA:
        return
    name, _, version = schema.partition("/")
    if name == SCHEMA.partition("/")[0] and version.isdecimal():
        raise SchemaVersionError(f"written as {schema}, this version reads {SCHEMA}", where=str(path))
    raise InputError("this is no file of masks", where=str(path), fix="record one: windtunnel capture --zeros SCRIPT")


def _records(layers: Sequence[Any], stored: Any, path: Path) -> Iterator[LayerRecord]:
    for number, layer in enumerate(layers):
        given: dict[str, Any] = {
            key: tuple(value) if isinstance(value, list) else value for key, value in layer.items()
        }
        for name, shape in (("X_bits", given["inputs"]), ("dY_bits", given["outputs"])):
            bits = stored[f"{number}/{name}"]
            pixels = int(np.prod(shape)) // shape[1]
            expected = (pixels, -(-shape[1] // bitmaps.WORD_BITS) * 4)
            if bits.shape != expected or bits.dtype != np.uint8:
                raise InputError(
                    f"{name} of {given['layer']} has the shape {bits.shape}, not {expected}",
                    where=str(path),
                    fix="record the masks anew",
                )
            given[name] = np.ascontiguousarray(bits).view("<u4").astype(np.uint32, copy=False)
        if given["kind"] not in _KINDS:
            raise InputError(f"{given['layer']} is of the unknown kind {given['kind']!r}", where=str(path))
        yield LayerRecord(**given)
