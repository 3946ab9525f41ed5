"""Import an optional dependency, or say which extra brings it."""

from __future__ import annotations

import importlib
from types import ModuleType

from windtunnel.errors import MissingExtraError

__all__ = ["require"]


def require(module: str, *, extra: str) -> ModuleType:
    """Import ``module``, which the extra ``extra`` of this package installs.

    Raises
    ------
    MissingExtraError
        The module is not installed.
    """
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        if error.name is None or error.name.split(".")[0] != module.split(".")[0]:
            raise
        raise MissingExtraError(
            f"this needs {module}, which is not installed",
            fix=f"pip install 'windtunnel[{extra}]'",
        ) from error
