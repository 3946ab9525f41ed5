"""Grey images of random noise: their size on disk is not that of their pixels."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

from windtunnel.base.extras import require
from windtunnel.errors import InputError
from windtunnel.systems.dataio.formats.format import FileLayout, Format, SampleFile, Samples

__all__ = ["Jpeg", "Png"]


class _ImageFile(SampleFile):
    num_samples = 1

    def __init__(self, image: Any, stream: IO[bytes]) -> None:
        self._image, self._stream = image, stream

    def read(self, index: int) -> NDArray[Any]:
        """Decode the image."""
        if index:
            raise IndexError("an image is one sample")
        return np.asarray(self._image)

    def close(self) -> None:
        """Close the file."""
        self._image.close()
        self._stream.close()


class Png(Format):
    """One grey image of 8 bits."""

    name = "png"
    magic = b"\x89PNG\r\n\x1a\n"
    bytes_ratio = 1.01

    def check(self) -> None:
        """One sample in two dimensions."""
        dataset = self.dataset
        if dataset.num_samples_per_file != 1:
            raise InputError(
                f"a {self.name} file is one sample, not {dataset.num_samples_per_file}",
                where="dataset.num_samples_per_file", fix="set num_samples_per_file: 1",
            )  # fmt: skip
        if len(dataset.record_dims) not in (0, 2) or (dataset.record_dims and dataset.record_element_type != "uint8"):
            raise InputError("an image has two dimensions of uint8", where="dataset.record_dims")

    def write(self, path: Path, companions: Sequence[Path], layout: FileLayout, samples: Samples) -> None:
        """Encode the image."""
        images = require("PIL.Image", extra="dataio")
        images.fromarray(next(samples)).save(path, format=self.name.upper())

    def open_file(self, key: str) -> SampleFile:
        """Read the header; pixels are decoded by ``read``."""
        images = require("PIL.Image", extra="dataio")
        kinds = (self.name.upper(),)
        return self.parse(key, lambda stream: _ImageFile(images.open(stream, formats=kinds), stream))


class Jpeg(Png):
    """The same with loss."""

    name = "jpeg"
    magic = b"\xff\xd8\xff"
    bytes_ratio = 1.05
