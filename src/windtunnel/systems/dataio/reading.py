"""Read samples of a data set in any format from any storage.

In: sections of a configuration, the key of a file and the number of a sample in it. Out: the sample as an array, or an
error that names both. Not here: which sample is next (``order``), batches (``loading``).
"""

from __future__ import annotations

import lzma
import tarfile
import tokenize
import zipfile
from types import TracebackType
from typing import Any

from numpy.typing import NDArray

from windtunnel.errors import WindtunnelError
from windtunnel.systems.dataio.config import DatasetConfig, StorageConfig
from windtunnel.systems.dataio.dataset import FileSet, file_set
from windtunnel.systems.dataio.formats import SampleFile, make_format
from windtunnel.systems.dataio.formats.format import DAMAGE, damage_error
from windtunnel.systems.dataio.storage import open_storage

__all__ = ["SampleReader"]

_DAMAGE = (
    *DAMAGE, zipfile.BadZipFile, tarfile.TarError, lzma.LZMAError, tokenize.TokenError, RuntimeError, SyntaxError,
)  # fmt: skip


class SampleReader:
    """The files of a data set; to be made in the process that reads.

    Parameters
    ----------
    dataset : DatasetConfig
    storage : StorageConfig
    is_kept_open : bool
        A file is opened once (``read_type: memory``) instead of for each sample (``on_demand``).
    is_direct : bool
        Local files are read without the page cache (``odirect``).

    Raises
    ------
    InputError
        The format or the storage is not supported.
    """

    def __init__(
        self,
        dataset: DatasetConfig,
        storage: StorageConfig | None = None,
        *,
        is_kept_open: bool = False,
        is_direct: bool = False,
    ) -> None:
        self._dataset = dataset
        self._storage = open_storage(storage or StorageConfig(), is_direct=is_direct)
        self._format = make_format(dataset, self._storage)
        self._is_kept_open = is_kept_open
        self._open: dict[str, SampleFile] = {}
        self._splits: dict[bool, FileSet] = {}

    def __enter__(self) -> SampleReader:
        return self

    def __exit__(self, *_: type[BaseException] | BaseException | TracebackType | None) -> None:
        self.close()

    def files(self, *, is_eval: bool = False) -> FileSet:
        """The files of one split."""
        if is_eval not in self._splits:
            self._splits[is_eval] = file_set(self._dataset, self._format.suffix, is_eval=is_eval)
        return self._splits[is_eval]

    def read(self, key: str, index: int) -> NDArray[Any]:
        """Read sample ``index`` of the file ``key``.

        Raises
        ------
        InputError
            The file is missing, cut, damaged or of another format, or the storage fails; names file and sample.
        """
        try:
            if self._is_kept_open:
                if key not in self._open:
                    self._open[key] = self._format.open_file(key)
                return self._open[key].read(index)
            file = self._format.open_file(key)
            try:
                return file.read(index)  # no view of what ends with the file
            finally:
                file.close()
        except WindtunnelError as error:
            if error.where == key:
                error.where = f"{key}: sample {index}"
            raise
        except OSError as error:
            if error.errno is None:  # of a parser, not of the system
                raise damage_error(key, index, error) from error
            raise self._storage.explain(key, error) from error
        except _DAMAGE as error:
            raise damage_error(key, index, error) from error

    def close(self) -> None:
        """Close all files."""
        while self._open:
            self._open.popitem()[1].close()
