"""Trained predictors as files: a ``Predictor`` in, one safetensors file out, and back.

The header names the network, the transforms with their parameters and the features; a file of other features is
refused with the difference. Not here: training, the form of the file (``cost.model_file``).
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from windtunnel.base.extras import require
from windtunnel.cost.model_file import read_model_header, write_model
from windtunnel.errors import InputError
from windtunnel.systems.tensor_programs.model.additive import AdditiveConfig
from windtunnel.systems.tensor_programs.model.code_features import CODE_NAMES
from windtunnel.systems.tensor_programs.model.features import FEATURE_NAMES
from windtunnel.systems.tensor_programs.model.network import Network, NetworkConfig
from windtunnel.systems.tensor_programs.model.predictor import Predictor, build
from windtunnel.systems.tensor_programs.model.samples import Normalizer
from windtunnel.systems.tensor_programs.model.transforms import FeatureScale, LabelTransform

__all__ = ["SCHEMA", "load_predictor", "read_header", "save_predictor"]

SCHEMA = 2
KIND = "cdmpp"
CONFIGS: dict[str, Any] = {"cdmpp": NetworkConfig, "additive": AdditiveConfig}
ARRAYS = ("features.low", "features.high", "context.mean", "context.std")
CODE_ARRAYS = ("code.low", "code.high")


def fingerprint(names: tuple[str, ...]) -> str:
    """Short hash of the features by name and order."""
    return hashlib.sha256("\n".join(names).encode()).hexdigest()[:16]


def save_predictor(predictor: Predictor, path: str | os.PathLike[str], *, overwrite: bool = False) -> Path:
    """Write one file; it appears only when it is complete.

    Raises as ``write_model`` does.
    """
    normalizer = predictor.normalizer
    arrays = (normalizer.features.low, normalizer.features.high, normalizer.context_mean, normalizer.context_std)
    tensors = {f"network.{name}": value.numpy() for name, value in predictor.network.state_dict().items()}
    tensors |= dict(zip(ARRAYS, arrays, strict=True))
    if normalizer.code is not None:
        tensors |= dict(zip(CODE_ARRAYS, (normalizer.code.low, normalizer.code.high), strict=True))
    names = _names(has_code=normalizer.code is not None)
    header = {
        "schema": SCHEMA,
        "kind": KIND,
        "architecture": "cdmpp" if isinstance(predictor.network, Network) else "additive",
        "network": asdict(predictor.network.config),
        "labels": normalizer.labels.to_json(),
        "target": normalizer.target,
        "context": normalizer.context,
        "has_positions": normalizer.has_positions,
        "features": list(names),
        "features_fingerprint": fingerprint(names),
        **predictor.header,
    }
    return write_model(path, header, tensors, overwrite=overwrite)


def read_header(path: str | os.PathLike[str]) -> dict[str, Any]:
    """Everything about a predictor but its tensors, checked."""
    header = read_model_header(path, kind=KIND, schema=SCHEMA, command="windtunnel models train programs")
    _require_features(header, os.fspath(path))
    return header


def _names(*, has_code: bool) -> tuple[str, ...]:
    return FEATURE_NAMES + CODE_NAMES if has_code else FEATURE_NAMES


def _require_features(header: Mapping[str, Any], where: str) -> None:
    theirs = tuple(header.get("features", ()))
    ours = _names(has_code=any(name in CODE_NAMES for name in theirs))
    if theirs == ours and header.get("features_fingerprint") == fingerprint(ours):
        return
    unknown, missing = sorted(set(theirs) - set(ours)), sorted(set(ours) - set(theirs))
    raise InputError(
        f"this predictor was trained on {len(theirs)} features, this version has {len(ours)}; "
        f"unknown: {', '.join(unknown[:5]) or 'none'}; missing: {', '.join(missing[:5]) or 'none'}",
        where=where,
        fix="train it anew with windtunnel models train",
    )


def load_predictor(path: str | os.PathLike[str]) -> Predictor:
    """Read what ``save_predictor`` wrote; raises as ``read_header`` does."""
    header = read_header(path)
    tensors = require("safetensors.torch", extra="learn").load_file(os.fspath(path))
    try:
        low, high, mean, std = (tensors.pop(name).numpy() for name in ARRAYS)
        code = [tensors.pop(name).numpy() for name in CODE_ARRAYS if name in tensors]
        sizes: dict[str, Any] = {
            key: tuple(value) if isinstance(value, list) else value for key, value in header["network"].items()
        }
        normalizer = Normalizer(
            FeatureScale(low, high),
            LabelTransform.from_json(header["labels"]),
            header["target"],
            header["context"],
            mean,
            std,
            header["has_positions"],
            FeatureScale(*code) if code else None,
        )
        config = CONFIGS[header["architecture"]](**sizes)
        network = build(config, normalizer)
        network.load_state_dict({name.removeprefix("network."): value for name, value in tensors.items()})
    except (KeyError, TypeError, RuntimeError) as error:
        raise InputError(f"the predictor is damaged: {str(error)[:200]}", where=str(path)) from error
    network.eval()
    return Predictor(network, normalizer, header)
