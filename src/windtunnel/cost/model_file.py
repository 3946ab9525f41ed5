"""Trained cost models as files: tensors and a JSON header in one safetensors file, never pickle.

In: arrays by name and a header, which names kind and schema. Out: a file that appears only when it is complete; or the
header of one, checked. Not here: what the kinds put into them (``operators.tile_file``,
``systems.tensor_programs.model.checkpoint``).
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from windtunnel.base.extras import require
from windtunnel.base.outputs import replacing
from windtunnel.errors import InputError, SchemaVersionError

__all__ = ["header_of", "read_model_header", "write_model"]


def write_model(
    path: str | os.PathLike[str], header: Mapping[str, Any], tensors: Mapping[str, Any], *, overwrite: bool = False
) -> Path:
    """Write one file.

    Parameters
    ----------
    path : path
    header : mapping
        Values of plain types, including ``kind`` and ``schema``.
    tensors : mapping of str to array
    overwrite : bool

    Raises
    ------
    InputError
        The path is taken.
    MissingExtraError
        safetensors is not installed.
    """
    target = Path(path)
    if target.exists() and not overwrite:
        raise InputError(f"{target} is there already", fix="choose another name, or allow to overwrite")
    contiguous = {name: np.ascontiguousarray(value) for name, value in tensors.items()}
    document = json.dumps(dict(header), sort_keys=True)
    data = require("safetensors.numpy", extra="learn").save(contiguous, {"header": document})
    target.parent.mkdir(parents=True, exist_ok=True)
    with replacing(target) as scratch:
        scratch.write_bytes(data)
    return target


def header_of(path: str | os.PathLike[str], *, command: str = "windtunnel models train") -> dict[str, Any]:
    """The header of a model of any kind.

    Raises
    ------
    InputError
        No such file, or no model.
    MissingExtraError
        safetensors is not installed.
    """
    source = Path(path)
    if not source.is_file():
        raise InputError(f"{source} is not there", fix=f"{command} makes one")
    safetensors = require("safetensors", extra="learn")
    try:
        with safetensors.safe_open(source, "np") as file:
            header: dict[str, Any] = json.loads((file.metadata() or {})["header"])
    except (safetensors.SafetensorError, KeyError, ValueError, OSError) as error:
        raise InputError("this is no cost model", where=str(source), fix=f"{command} makes one") from error
    return header


def read_model_header(path: str | os.PathLike[str], *, kind: str, schema: int, command: str) -> dict[str, Any]:
    """Everything about a model but its tensors.

    Parameters
    ----------
    path : path
    kind, schema
        What it must be of.
    command : str
        The verb that trains one.

    Raises
    ------
    InputError
        No such file, or no model.
    SchemaVersionError
        It is of another kind, or was written in another form.
    MissingExtraError
        safetensors is not installed.
    """
    header = header_of(path, command=command)
    if header.get("schema") != schema or header.get("kind") != kind:
        raise SchemaVersionError(
            f"this model is of kind {header.get('kind')} and schema {header.get('schema')}; "
            f"this version knows {kind} and {schema}",
            where=os.fspath(path),
            fix=f"train it anew with {command}",
        )
    return header
