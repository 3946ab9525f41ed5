"""Trained tile models as files: a ``TileModel`` in, one safetensors file out, and back.

The header says the features, the training devices, the hash of their rows and the errors on devices that
were held out; a file of other features is refused with the difference. Not here: training, the form of the file
(``model_file``).
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from windtunnel.base.extras import require
from windtunnel.cost.intervals import ConformalIntervals
from windtunnel.cost.model_file import read_model_header, write_model
from windtunnel.cost.operators.tile import ClassModel, TileModel
from windtunnel.cost.operators.tile_features import PRODUCT_FEATURES, VECTOR_FEATURES
from windtunnel.cost.operators.tile_lookup import TileLookup
from windtunnel.cost.operators.tile_trees import TreeModel, Trees
from windtunnel.errors import InputError

__all__ = ["SCHEMA", "load_tile", "read_tile_header", "save_tile"]

SCHEMA = 2
KIND = "tile"
_PRESET, _LABEL = "best-tile", "log(bound / time)"
_FEATURES = {"products": list(PRODUCT_FEATURES), "vectors": list(VECTOR_FEATURES)}
_LOOKUP = ("points", "tiles", "center", "scale")


def save_tile(model: TileModel, path: str | os.PathLike[str], *, overwrite: bool = False) -> Path:
    """Write one file; it appears only when it is complete.

    Raises as ``write_model`` does.
    """
    tensors: dict[str, Any] = {}
    classes = {name: _pack_model(name, cls, tensors) for name, cls in model.classes.items()}
    header = {
        "schema": SCHEMA,
        "kind": KIND,
        "preset": _PRESET,
        "label": _LABEL,
        "features": _FEATURES,
        "devices": list(model.devices),
        "split": model.digest,
        "validation": model.validation,
        "intervals": model.intervals.to_dict() if model.intervals else None,
        "classes": classes,
    }
    return write_model(path, header, tensors, overwrite=overwrite)


def _pack_model(name: str, model: ClassModel, tensors: dict[str, Any]) -> dict[str, Any]:
    assert isinstance(model, TreeModel)
    tensors |= {f"{name}.lookup.{key}": getattr(model.lookup, key) for key in _LOOKUP}
    own = model.views[0]
    for key, data in (("trees", own.data), ("plain", own.plain)):
        tensors[f"{name}.{key}"] = np.frombuffer(data, dtype=np.uint8)
    views = [name, "bmm"][: len(model.views)]
    return {"kind": "trees", "views": views, "overhead_ns": own.overhead_ns, "tiles": own.tiles, "chips": own.chips}


def read_tile_header(path: str | os.PathLike[str]) -> dict[str, Any]:
    """Everything about a model but its tensors, checked.

    Raises
    ------
    InputError, SchemaVersionError
        As ``read_model_header`` does, and for a model of other features.
    """
    header = read_model_header(path, kind=KIND, schema=SCHEMA, command="windtunnel models train tile")
    _require_features(header, os.fspath(path))
    return header


def _require_features(header: Mapping[str, Any], where: str) -> None:
    theirs = header.get("features")
    if header.get("preset") == _PRESET and theirs == _FEATURES:
        return
    ours = {name for names in _FEATURES.values() for name in names}
    given = {name for names in (theirs or {}).values() for name in names}
    raise InputError(
        f"this model of preset {header.get('preset')!r} was trained on other features; "
        f"unknown: {', '.join(sorted(given - ours)[:5]) or 'none'}; "
        f"missing: {', '.join(sorted(ours - given)[:5]) or 'none'}",
        where=where,
        fix="train it anew with windtunnel models train tile",
    )


def load_tile(path: str | os.PathLike[str]) -> TileModel:
    """Read what ``save_tile`` wrote; raises as ``read_tile_header`` does."""
    header = read_tile_header(path)
    tensors = require("safetensors.numpy", extra="learn").load_file(os.fspath(path))
    try:
        classes = _unpack_models(header["classes"], tensors)
        intervals = ConformalIntervals.from_dict(header["intervals"]) if header["intervals"] else None
    except (KeyError, TypeError, ValueError) as error:
        raise InputError(f"the model is damaged: {error!r}"[:300], where=os.fspath(path)) from error
    return TileModel(classes, tuple(header["devices"]), header["split"], intervals, header["validation"])


def _unpack_models(parts: Mapping[str, Any], tensors: Mapping[str, Any]) -> dict[str, ClassModel]:
    trees = {name: _trees(name, part, tensors) for name, part in parts.items()}
    result: dict[str, ClassModel] = {}
    for name, part in parts.items():
        lookup = TileLookup(**{key: tensors[f"{name}.lookup.{key}"] for key in _LOOKUP})
        result[name] = TreeModel(name, tuple(trees[view] for view in part["views"]), lookup)
    return result


def _trees(name: str, part: Mapping[str, Any], tensors: Mapping[str, Any]) -> Trees:
    tiles = {device: tuple((item[0], item[1]) for item in given) for device, given in part["tiles"].items()}
    chips = {device: tuple(given) for device, given in part["chips"].items()}
    data, plain = (tensors[f"{name}.{key}"].tobytes() for key in ("trees", "plain"))
    return Trees(data, plain, part["overhead_ns"], tiles, chips)
