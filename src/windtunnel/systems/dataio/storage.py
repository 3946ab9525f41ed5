"""Where files lie: a folder, or a bucket of an S3-compatible service.

In: the storage section of a configuration. Out: files that are opened, listed, and appear whole or not at all; one
error for what can fail. Keys are paths below the root. Not here: what is in the files (``formats``).
"""

from __future__ import annotations

import errno
import io
import mmap
import os
import re
import secrets
import shutil
import tempfile
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from windtunnel.base.extras import require
from windtunnel.base.outputs import is_full, replacing
from windtunnel.errors import InputError, WindtunnelError
from windtunnel.measure.disks import evict
from windtunnel.systems.dataio.config import StorageConfig

__all__ = ["LocalStorage", "S3Storage", "Storage", "open_storage"]

_GONE = (errno.ESTALE, errno.ENOTCONN, errno.ENODEV, errno.EIO, errno.EHOSTDOWN, errno.ETIMEDOUT)
_OPTIONS = {
    "endpoint_url", "region", "access_key_id", "secret_access_key", "session_token", "anonymous", "max_attempts",
    "connect_timeout_s",
}  # fmt: skip
# numpy leaves out the number of the system's error
_WRITTEN_IN_PART = re.compile(r"requested and \d+ written")
_S3_PREFIX = "s3_"  # DLIO also spells options so


class Storage(ABC):
    """Files by key."""

    root: str

    @abstractmethod
    def open(self, key: str, *, is_random: bool = False) -> IO[bytes]:
        """Open a file to read; ``is_random`` where only parts of it will be read."""

    @abstractmethod
    def size(self, key: str) -> int | None:
        """Bytes of a file; None where it is not there."""

    @abstractmethod
    def sizes(self, prefix: str) -> dict[str, int]:
        """Bytes of all complete files in a folder and its subfolders, by key."""

    @abstractmethod
    def put(self, key: str) -> Any:
        """Context that yields a scratch path; the file appears under ``key`` when the block ends well."""

    @abstractmethod
    def remove(self, key: str) -> None:
        """Remove a file; nothing happens where it is not there."""

    def make_folder(self, key: str) -> None:  # noqa: B027 - a bucket has no folders
        """Create an empty folder."""

    def remove_scratch(self, keys: Iterable[str]) -> None:  # noqa: B027 - uploads leave nothing behind
        """Remove what an interrupted run left of these files."""

    @abstractmethod
    def explain(self, key: str, error: BaseException) -> InputError:
        """The error for a user of what went wrong with a file."""

    def free_bytes(self) -> int | None:
        """Room that is left; None where the storage has no limit that it knows."""
        return None

    def local_path(self, key: str) -> Path | None:  # noqa: ARG002
        """The path of a local file; None where files are elsewhere."""
        return None

    def drop(self, keys: Iterable[str]) -> None:  # noqa: B027 - nothing of a bucket is in memory
        """Drop files from the kernel's memory."""

    @abstractmethod
    def scratch_folder(self, key: str, name: str) -> AbstractContextManager[str]:
        """Context that yields the key of a new folder near a folder, which is removed with all that is in it."""


def open_storage(config: StorageConfig, *, is_direct: bool = False) -> Storage:
    """Open the storage of a configuration; nothing is read until files are.

    Parameters
    ----------
    config : StorageConfig
    is_direct : bool
        Local files are read without the page cache.

    Raises
    ------
    InputError
        Its kind or one of its options is not supported.
    """
    if config.storage_type in ("local_fs", "parallel_fs"):
        return LocalStorage(config.storage_root, is_direct)
    if config.storage_type == "s3":
        return S3Storage(config.storage_root, config.storage_options)
    raise InputError(
        f"storage of type {config.storage_type} is not supported",
        where="storage.storage_type",
        fix="AIStore speaks S3: storage_type s3 with storage_options.endpoint_url http://HOST:PORT/s3",
    )


def _read_direct(path: Path) -> bytes:
    """Read a file past the page cache, which takes a buffer that is aligned as the device is."""
    flags = os.O_RDONLY | getattr(os, "O_DIRECT", 0)
    handle = os.open(path, flags)
    try:
        size, done = os.fstat(handle).st_size, 0
        with mmap.mmap(-1, size // mmap.PAGESIZE * mmap.PAGESIZE + mmap.PAGESIZE) as buffer:
            while done < size:
                with memoryview(buffer) as view, view[done:] as part:
                    count = os.preadv(handle, [part], done)
                if not count:
                    break
                done += count
            return buffer[:done]
    finally:
        os.close(handle)


@dataclass(frozen=True)
class LocalStorage(Storage):
    """A folder, of a local or a mounted file system.

    Attributes
    ----------
    root : str
    is_direct : bool
        Files are read whole, and without the page cache.
    """

    root: str = "./"
    is_direct: bool = False

    def local_path(self, key: str) -> Path:
        """The path of a file."""
        return Path(self.root) / key

    def open(self, key: str, *, is_random: bool = False) -> IO[bytes]:
        """Open a file to read; parts are read without more ahead than asked for."""
        try:
            if self.is_direct:
                return io.BytesIO(_read_direct(self.local_path(key)))
            return self.local_path(key).open("rb", buffering=0 if is_random else -1)
        except OSError as error:
            raise self.explain(key, error) from error

    def size(self, key: str) -> int | None:
        """Bytes of a file."""
        try:
            return self.local_path(key).stat().st_size
        except (FileNotFoundError, NotADirectoryError):
            return None
        except OSError as error:
            raise self.explain(key, error) from error

    def sizes(self, prefix: str) -> dict[str, int]:
        """Bytes of all files; scratch files begin with a dot."""
        result, top = {}, self.local_path(prefix)
        for folder, _, names in os.walk(top, onerror=self._raise_unless_missing):
            for name in names:
                path = Path(folder) / name
                if not name.startswith("."):
                    result[Path(prefix, path.relative_to(top)).as_posix()] = path.stat().st_size
        return result

    def _raise_unless_missing(self, error: OSError) -> None:
        if not isinstance(error, FileNotFoundError):
            raise self.explain(str(error.filename), error)

    @contextmanager
    def put(self, key: str) -> Iterator[Path]:
        """Write next to the file, then rename."""
        path = self.local_path(key)
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            with replacing(path) as scratch:
                yield scratch
        except OSError as error:
            raise self.explain(key, error) from error

    def remove(self, key: str) -> None:
        """Remove a file."""
        self.local_path(key).unlink(missing_ok=True)

    def drop(self, keys: Iterable[str]) -> None:
        """Drop files from the page cache."""
        for key in keys:
            try:
                evict([self.local_path(key)])
            except OSError as error:
                raise self.explain(key, error) from error

    @contextmanager
    def scratch_folder(self, key: str, name: str) -> Iterator[str]:
        """Make a folder on the same file system: in the folder itself, or in the nearest one above that is there."""
        path = self.local_path(key).absolute()
        parent = next(folder for folder in (path, *path.parents) if folder.is_dir())
        try:
            folder = tempfile.mkdtemp(prefix=f"windtunnel-{name}-", dir=parent)
        except OSError as error:
            raise self.explain(key, error) from error
        try:
            yield folder
        finally:
            shutil.rmtree(folder, ignore_errors=True)

    def make_folder(self, key: str) -> None:
        """Create an empty folder; nothing happens where it is there."""
        try:
            self.local_path(key).mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise self.explain(key, error) from error

    def remove_scratch(self, keys: Iterable[str]) -> None:
        """Remove what a run that was killed left of these files, in their folders."""
        folders: dict[Path, set[str]] = {}
        for key in keys:
            path = self.local_path(key)
            folders.setdefault(path.parent, set()).add(path.name[:60])
        for folder, names in folders.items():
            for path in folder.iterdir() if folder.is_dir() else ():
                # ``.name.random.suffix``, as ``replacing`` names it
                stem = path.name.removesuffix(path.suffix)[1:]
                if path.name.startswith(".") and stem.rpartition(".")[0] in names:
                    path.unlink(missing_ok=True)

    def free_bytes(self) -> int | None:
        """Room that is left for this user on the file system."""
        folder = Path(self.root).absolute()
        while not folder.exists() and folder != folder.parent:
            folder = folder.parent
        return shutil.disk_usage(folder).free

    def explain(self, key: str, error: BaseException) -> InputError:
        """Tell a missing file from a file system that is gone or full."""
        path, reason = self.local_path(key), getattr(error, "strerror", None) or str(error)
        if isinstance(error, OSError) and (is_full(error) or _WRITTEN_IN_PART.search(str(error))):
            free_some = "free some space and start again: complete files are kept"
            return InputError(f"the disk is full: {reason}", where=str(path), fix=free_some)
        is_gone = isinstance(error, OSError) and error.errno in _GONE
        if is_gone or not Path(self.root).is_dir():
            mount = f"check that {self.root} is mounted, and its server"
            return InputError(f"the storage does not answer: {reason}", where=str(path), fix=mount)
        if isinstance(error, FileNotFoundError):
            write = "windtunnel dataio run CONFIG writes the files of a data set that are missing"
            return InputError("the file is not there", where=str(path), fix=write)
        return InputError(f"the file cannot be used: {reason}", where=str(path), fix="check the path and permissions")


class S3Storage(Storage):
    """A bucket, or a prefix in one; each process makes its own connections.

    Parameters
    ----------
    root : str
        ``s3://bucket/prefix`` or ``bucket/prefix``.
    options : mapping
        ``endpoint_url``, ``region``, ``access_key_id``, ``secret_access_key``, ``session_token``, ``anonymous``,
        ``max_attempts``, ``connect_timeout_s``. Credentials that are left out come from the environment.

    Raises
    ------
    InputError
        An option is unknown, or there is no bucket in ``root``.
    """

    _READ_AHEAD_BYTES = 1 << 20

    def __init__(self, root: str, options: Mapping[str, Any]) -> None:
        self.root = root.removeprefix("s3://").strip("/")
        self._options = {key.removeprefix(_S3_PREFIX): value for key, value in options.items()}
        if unknown := sorted(set(self._options) - _OPTIONS - {"force_path_style"}):
            raise InputError(
                f"storage_options has no key {unknown[0]!r}",
                where=f"storage.storage_options.{unknown[0]}",
                fix=f"known keys: {', '.join(sorted(_OPTIONS))}",
            )
        if not self.root or self.root.startswith("."):
            raise InputError(
                f"{root!r} names no bucket", where="storage.storage_root", fix="such as s3://bucket/prefix"
            )
        self._files: tuple[int, Any] = (0, None)

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_files": (0, None)}  # connections stay in their process

    def open(self, key: str, *, is_random: bool = False) -> IO[bytes]:
        """Fetch the file whole, or open it for requests of ranges."""
        with self._explaining(key) as files:
            if not is_random:
                return io.BytesIO(files.cat_file(self._path(key)))
            file: IO[bytes] = files.open(self._path(key), "rb", block_size=self._READ_AHEAD_BYTES)
            return file

    def size(self, key: str) -> int | None:
        """Bytes of an object."""
        with self._explaining(key) as files, suppress(FileNotFoundError):
            return int(files.info(self._path(key))["size"])
        return None

    def sizes(self, prefix: str) -> dict[str, int]:
        """Bytes of all objects."""
        entries: dict[str, Any] = {}
        with self._explaining(prefix) as files, suppress(FileNotFoundError):
            entries = files.find(self._path(prefix), detail=True)
        return {path.removeprefix(f"{self.root}/"): int(entry["size"]) for path, entry in entries.items()}

    @contextmanager
    def put(self, key: str) -> Iterator[Path]:
        """Write a local file, then upload it; an upload is visible when it is complete."""
        with tempfile.TemporaryDirectory() as folder:
            scratch = Path(folder) / Path(key).name
            yield scratch
            with self._explaining(key) as files:
                files.put_file(str(scratch), self._path(key))

    def remove(self, key: str) -> None:
        """Remove an object."""
        with self._explaining(key) as files, suppress(FileNotFoundError):
            files.rm_file(self._path(key))

    @contextmanager
    def scratch_folder(self, key: str, name: str) -> Iterator[str]:
        """Take a prefix that no other run has."""
        prefix = f"{key.rstrip('/')}-{name}-{secrets.token_hex(4)}"
        try:
            yield prefix
        finally:
            for scratch in self.sizes(prefix):
                self.remove(scratch)

    @contextmanager
    def _explaining(self, key: str) -> Iterator[Any]:
        """Yield the connection, with its errors explained."""
        try:
            yield self._connect()
        except WindtunnelError:
            raise
        except Exception as error:  # of s3fs, botocore and aiohttp, whose trees have no common root
            raise self.explain(key, error) from error

    def explain(self, key: str, error: BaseException) -> InputError:
        """Tell credentials, buckets, endpoints and objects apart."""
        where, name = f"s3://{self._path(key)}", type(error).__name__
        endpoint = self._options.get("endpoint_url") or "the S3 service"
        if isinstance(error, PermissionError) or "Credentials" in name:
            return InputError(
                f"{endpoint} refuses the credentials: {error}", where=where,
                fix="check access_key_id and secret_access_key of storage_options, or AWS_* in the environment",
            )  # fmt: skip
        if isinstance(error, FileNotFoundError):
            if not key:  # the bucket is asked for first
                return InputError(
                    f"there is no bucket {self.root.partition('/')[0]!r}", where=f"{endpoint}: {where}",
                    fix="create it, or correct storage.storage_root",
                )  # fmt: skip
            return InputError("the object is not there", where=where, fix="generate the data set, or check the prefix")
        if "Connect" in name or "Timeout" in name or isinstance(error, TimeoutError | ConnectionError):
            return InputError(
                f"{endpoint} does not answer: {error}", where=where,
                fix="check storage_options.endpoint_url, and that the service runs",
            )  # fmt: skip
        return InputError(f"{endpoint} failed: {error}", where=where, fix="try again; see the log of the service")

    def _path(self, key: str) -> str:
        return f"{self.root}/{key}".rstrip("/")

    def _connect(self) -> Any:
        """Connect once in each process: connections do not survive a fork."""
        if self._files[0] != os.getpid():
            options = self._options
            files = require("s3fs", extra="s3").S3FileSystem(
                key=options.get("access_key_id"),
                secret=options.get("secret_access_key"),
                token=options.get("session_token"),
                anon=bool(options.get("anonymous", False)),
                endpoint_url=options.get("endpoint_url"),
                client_kwargs={"region_name": options["region"]} if "region" in options else {},
                config_kwargs={
                    "connect_timeout": float(options.get("connect_timeout_s", 5)),
                    "retries": {"max_attempts": int(options.get("max_attempts", 2))},
                },
                skip_instance_cache=True,
                use_listings_cache=False,
            )
            try:
                files.call_s3("head_bucket", Bucket=self.root.partition("/")[0])
            except Exception as error:
                raise self.explain("", error) from error
            self._files = (os.getpid(), files)
        return self._files[1]
