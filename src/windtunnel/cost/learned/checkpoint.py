"""Trained predictors as files (room cost): a ``Predictor`` in, one safetensors file out, and back.

Tensors and a JSON header, never pickle. The header names the schema, the network, the transforms with their parameters
and the features; a file of another schema or of other features is refused with the difference. Not here: training.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from windtunnel.cost.learned.additive import AdditiveConfig
from windtunnel.cost.learned.features import FEATURE_NAMES
from windtunnel.cost.learned.network import Network, NetworkConfig
from windtunnel.cost.learned.predictor import Predictor, build
from windtunnel.cost.learned.samples import Normaliser
from windtunnel.cost.learned.transforms import FeatureScale, LabelTransform
from windtunnel.errors import InputError, SchemaVersionError
from windtunnel.extras import require

__all__ = ["SCHEMA", "load_predictor", "read_header", "save_predictor"]

SCHEMA = 1
KIND = "cdmpp"
CONFIGS: dict[str, Any] = {"cdmpp": NetworkConfig, "additive": AdditiveConfig}
ARRAYS = ("features.low", "features.high", "context.mean", "context.std")


def fingerprint(names: tuple[str, ...]) -> str:
    """Short hash of the features by name and order."""
    return hashlib.sha256("\n".join(names).encode()).hexdigest()[:16]


def save_predictor(predictor: Predictor, path: str | os.PathLike[str], *, overwrite: bool = False) -> Path:
    """Write one file; it appears only when it is complete.

    Raises
    ------
    InputError
        The path is taken.
    """
    target = Path(path)
    if target.exists() and not overwrite:
        raise InputError(f"{target} is there already", fix="choose another name, or allow to overwrite")
    normaliser = predictor.normaliser
    arrays = (normaliser.features.low, normaliser.features.high, normaliser.context_mean, normaliser.context_std)
    tensors = {f"network.{name}": value.numpy() for name, value in predictor.network.state_dict().items()}
    tensors |= dict(zip(ARRAYS, arrays, strict=True))
    header = {
        "schema": SCHEMA,
        "kind": KIND,
        "architecture": "cdmpp" if isinstance(predictor.network, Network) else "additive",
        "network": asdict(predictor.network.config),
        "labels": normaliser.labels.to_json(),
        "target": normaliser.target,
        "context": normaliser.context,
        "has_positions": normaliser.has_positions,
        "features": list(FEATURE_NAMES),
        "features_fingerprint": fingerprint(FEATURE_NAMES),
        **predictor.header,
    }
    contiguous = {name: np.ascontiguousarray(value) for name, value in tensors.items()}
    data = require("safetensors.numpy", extra="learn").save(contiguous, {"header": json.dumps(header, sort_keys=True)})
    target.parent.mkdir(parents=True, exist_ok=True)
    partial = target.with_name(f".{target.name}.{os.getpid()}")
    partial.write_bytes(data)
    partial.replace(target)
    return target


def read_header(path: str | os.PathLike[str]) -> dict[str, Any]:
    """Everything about a predictor but its tensors, checked.

    Raises
    ------
    InputError
        No such file, or not a predictor, or one of other features.
    SchemaVersionError
        It was written in another form.
    """
    source = Path(path)
    if not source.is_file():
        raise InputError(f"{source} is not there", fix="windtunnel cost train makes one")
    safetensors = require("safetensors", extra="learn")
    try:
        with safetensors.safe_open(source, "np") as file:
            header: dict[str, Any] = json.loads((file.metadata() or {})["header"])
    except (safetensors.SafetensorError, KeyError, ValueError, OSError) as error:
        raise InputError("this is not a predictor", where=str(source), fix="windtunnel cost train makes one") from error
    if header.get("schema") != SCHEMA or header.get("kind") != KIND:
        raise SchemaVersionError(
            f"this predictor is of kind {header.get('kind')} and schema {header.get('schema')}; "
            f"this version knows {KIND} and {SCHEMA}",
            where=str(source),
            fix="train it anew with windtunnel cost train",
        )
    _require_features(header, str(source))
    return header


def _require_features(header: Mapping[str, Any], where: str) -> None:
    theirs = tuple(header.get("features", ()))
    if theirs == FEATURE_NAMES and header.get("features_fingerprint") == fingerprint(FEATURE_NAMES):
        return
    unknown, missing = sorted(set(theirs) - set(FEATURE_NAMES)), sorted(set(FEATURE_NAMES) - set(theirs))
    raise InputError(
        f"this predictor was trained on {len(theirs)} features, this version has {len(FEATURE_NAMES)}; "
        f"unknown: {', '.join(unknown[:5]) or 'none'}; missing: {', '.join(missing[:5]) or 'none'}",
        where=where,
        fix="train it anew with windtunnel cost train",
    )


def _plain(value: Any) -> Any:
    return tuple(value) if isinstance(value, list) else value


def load_predictor(path: str | os.PathLike[str]) -> Predictor:
    """Read what ``save_predictor`` wrote; raises as ``read_header`` does."""
    header = read_header(path)
    tensors = require("safetensors.torch", extra="learn").load_file(os.fspath(path))
    try:
        low, high, mean, std = (tensors.pop(name).numpy() for name in ARRAYS)
        sizes: dict[str, Any] = {key: _plain(value) for key, value in header["network"].items()}
        normaliser = Normaliser(
            FeatureScale(low, high),
            LabelTransform.from_json(header["labels"]),
            header["target"],
            header["context"],
            mean,
            std,
            header["has_positions"],
        )
        config = CONFIGS[header["architecture"]](**sizes)
        network = build(config, normaliser)
        network.load_state_dict({name.removeprefix("network."): value for name, value in tensors.items()})
    except (KeyError, TypeError, RuntimeError) as error:
        raise InputError(f"the predictor is damaged: {str(error)[:200]}", where=str(path)) from error
    network.eval()
    return Predictor(network, normaliser, header)
