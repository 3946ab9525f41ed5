"""Trained tile models as files (room cost): a ``TileModel`` in, one safetensors file out, and back.

Tensors and a JSON header, never pickle. The header says the kind, the preset, the features, the training devices, the
hash of their rows and the errors on devices that were held out; a file of another schema or of other features is
refused with the difference. Not here: training.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from windtunnel.cost.intervals import ConformalIntervals
from windtunnel.cost.operators.tile import ClassModel, TileModel
from windtunnel.cost.operators.tile_features import PRODUCT_FEATURES, VECTOR_FEATURES
from windtunnel.cost.operators.tile_lookup import TileLookup
from windtunnel.cost.operators.tile_paper import FEATURES as PAPER_FEATURES
from windtunnel.cost.operators.tile_paper import PaperModel
from windtunnel.cost.operators.tile_trees import TreeModel, Trees
from windtunnel.errors import InputError, SchemaVersionError
from windtunnel.extras import require

__all__ = ["SCHEMA", "load_tile", "read_tile_header", "save_tile"]

SCHEMA = 1
KIND = "tile"
_LABELS = {"best-tile": "log(bound / time)", "paper": "utilisation = gamma - alpha / waves"}
_FEATURES = {
    "best-tile": {"products": list(PRODUCT_FEATURES), "vectors": list(VECTOR_FEATURES)},
    "paper": {"all": list(PAPER_FEATURES)},
}
_LOOKUP = ("points", "tiles", "center", "scale")


def save_tile(model: TileModel, path: str | os.PathLike[str], *, overwrite: bool = False) -> Path:
    """Write one file; it appears only when it is complete.

    Raises
    ------
    InputError
        The path is taken.
    """
    target = Path(path)
    if target.exists() and not overwrite:
        raise InputError(f"{target} is there already", fix="choose another name, or allow to overwrite")
    tensors: dict[str, Any] = {}
    classes = {name: _packed(name, one, tensors) for name, one in model.classes.items()}
    header = {
        "schema": SCHEMA,
        "kind": KIND,
        "preset": model.preset,
        "label": _LABELS[model.preset],
        "features": _FEATURES[model.preset],
        "devices": list(model.devices),
        "split": model.digest,
        "validation": model.validation,
        "intervals": model.intervals.to_dict() if model.intervals else None,
        "classes": classes,
    }
    contiguous = {name: np.ascontiguousarray(value) for name, value in tensors.items()}
    data = require("safetensors.numpy", extra="learn").save(contiguous, {"header": json.dumps(header, sort_keys=True)})
    target.parent.mkdir(parents=True, exist_ok=True)
    partial = target.with_name(f".{target.name}.{os.getpid()}")
    partial.write_bytes(data)
    partial.replace(target)
    return target


def _packed(name: str, model: ClassModel, tensors: dict[str, Any]) -> dict[str, Any]:
    if isinstance(model, PaperModel):
        _pack_lookup(name, model.lookup, tensors)
        tensors |= {f"{name}.network.{key}": value for key, value in model.weights.items()}
        return {"kind": "network"}
    assert isinstance(model, TreeModel)
    _pack_lookup(name, model.lookup, tensors)
    own = model.views[0]
    tensors[f"{name}.trees"] = np.frombuffer(own.data, dtype=np.uint8)
    return {
        "kind": "trees",
        "views": [name, "bmm"][: len(model.views)],
        "overhead_ns": own.overhead_ns,
        "tiles": own.tiles,
        "chips": own.chips,
    }


def _pack_lookup(name: str, lookup: TileLookup, tensors: dict[str, Any]) -> None:
    tensors |= {f"{name}.lookup.{key}": getattr(lookup, key) for key in _LOOKUP}


def read_tile_header(path: str | os.PathLike[str]) -> dict[str, Any]:
    """Everything about a model but its tensors, checked.

    Raises
    ------
    InputError
        No such file, or not a model, or one of other features.
    SchemaVersionError
        It is of another kind, or was written in another form.
    """
    source = Path(path)
    if not source.is_file():
        raise InputError(f"{source} is not there", fix="windtunnel cost train tile makes one")
    safetensors = require("safetensors", extra="learn")
    try:
        with safetensors.safe_open(source, "np") as file:
            header: dict[str, Any] = json.loads((file.metadata() or {})["header"])
    except (safetensors.SafetensorError, KeyError, ValueError, OSError) as error:
        raise InputError("this is no cost model", where=str(source), fix="windtunnel cost train makes one") from error
    if header.get("schema") != SCHEMA or header.get("kind") != KIND:
        raise SchemaVersionError(
            f"this model is of kind {header.get('kind')} and schema {header.get('schema')}; "
            f"this version knows {KIND} and {SCHEMA}",
            where=str(source),
            fix="train it anew with windtunnel cost train tile",
        )
    _require_features(header, str(source))
    return header


def _require_features(header: Mapping[str, Any], where: str) -> None:
    known = _FEATURES.get(header.get("preset", ""))
    theirs = header.get("features")
    if known is not None and theirs == known:
        return
    ours = {name for names in (known or {}).values() for name in names}
    given = {name for names in (theirs or {}).values() for name in names}
    raise InputError(
        f"this model of preset {header.get('preset')!r} was trained on other features; "
        f"unknown: {', '.join(sorted(given - ours)[:5]) or 'none'}; "
        f"missing: {', '.join(sorted(ours - given)[:5]) or 'none'}",
        where=where,
        fix="train it anew with windtunnel cost train tile",
    )


def load_tile(path: str | os.PathLike[str]) -> TileModel:
    """Read what ``save_tile`` wrote; raises as ``read_tile_header`` does."""
    header = read_tile_header(path)
    tensors = require("safetensors.numpy", extra="learn").load_file(os.fspath(path))
    try:
        classes = _unpacked(header["classes"], tensors)
        intervals = ConformalIntervals.from_dict(header["intervals"]) if header["intervals"] else None
    except (KeyError, TypeError, ValueError) as error:
        raise InputError(f"the model is damaged: {error!r}"[:300], where=os.fspath(path)) from error
    return TileModel(
        header["preset"], classes, tuple(header["devices"]), header["split"], intervals, header["validation"]
    )


def _unpacked(parts: Mapping[str, Any], tensors: Mapping[str, Any]) -> dict[str, ClassModel]:
    trees = {name: _trees(name, part, tensors) for name, part in parts.items() if part["kind"] == "trees"}
    found: dict[str, ClassModel] = {}
    for name, part in parts.items():
        columns = {key: tensors[f"{name}.lookup.{key}"] for key in _LOOKUP}
        lookup = TileLookup(**columns, is_raw=part["kind"] == "network")
        if part["kind"] == "network":
            prefix = f"{name}.network."
            weights = {key.removeprefix(prefix): value for key, value in tensors.items() if key.startswith(prefix)}
            found[name] = PaperModel(name, weights, lookup)
        else:
            found[name] = TreeModel(name, tuple(trees[view] for view in part["views"]), lookup)
    return found


def _trees(name: str, part: Mapping[str, Any], tensors: Mapping[str, Any]) -> Trees:
    tiles = {device: tuple((one[0], one[1]) for one in given) for device, given in part["tiles"].items()}
    chips = {device: tuple(given) for device, given in part["chips"].items()}
    return Trees(tensors[f"{name}.trees"].tobytes(), part["overhead_ns"], tiles, chips)
