"""TFRecord files, without TensorFlow: length, masked CRC-32C, payload, masked CRC-32C.

The payload is a ``tf.train.Example`` with the features ``image`` (bytes) and ``size`` (int64). Next to the data lies
``index/{train,valid}/{file}.idx``: a line "offset length" for each record, with its framing.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

from windtunnel.systems.dataio.formats.crc32c import mask_crc32c
from windtunnel.systems.dataio.formats.format import FileLayout, Format, SampleFile, Samples, damage_error
from windtunnel.systems.dataio.formats.indexed import read_exactly

__all__ = ["TfRecord", "parse_example", "serialize_example"]

_LENGTH = struct.Struct("<QI")
_CRC = struct.Struct("<I")
_LEN, _VARINT = 2, 0  # wire types of protobuf
_FEATURES, _FEATURE, _KEY, _VALUE, _BYTES, _INT64 = 1, 1, 1, 2, 1, 3  # field numbers of tf.train.Example


def _varint(number: int) -> bytes:
    result = bytearray()
    while number > 0x7F:
        result.append(0x80 | number & 0x7F)
        number >>= 7
    result.append(number)
    return bytes(result)


def _field(number: int, data: bytes) -> bytes:
    return _varint(number << 3 | _LEN) + _varint(len(data)) + data


def serialize_example(image: bytes, size: int) -> bytes:
    """Serialize an Example of an image and a size.

    Examples
    --------
    >>> parse_example(np.frombuffer(serialize_example(b"grey", 2), np.uint8))["size"]
    2
    """
    size_list = _field(_INT64, _field(1, _varint(size)))
    features = (("image", _field(_BYTES, _field(1, image))), ("size", size_list))
    entries = [_field(_FEATURE, _field(_KEY, key.encode()) + _field(_VALUE, value)) for key, value in features]
    return _field(_FEATURES, b"".join(entries))


def parse_example(data: NDArray[np.uint8]) -> dict[str, Any]:
    """Parse an Example: by name, the first value of each feature; bytes as a view, integers.

    Raises
    ------
    ValueError
        This is no Example.
    """
    result: dict[str, Any] = {}
    for number, features in _fields(data):
        for inner, entry in _fields(features) if number == _FEATURES else ():
            if inner != _FEATURE:
                continue
            parts = dict(_fields(entry))
            name = bytes(parts[_KEY]).decode()
            for kind, values in _fields(parts[_VALUE]):
                first = next((value for _, value in _fields(values)), None)
                is_packed = kind == _INT64 and isinstance(first, np.ndarray)
                result[name] = _read_varint(np.asarray(first), 0)[0] if is_packed else first
    return result


def _fields(data: NDArray[np.uint8]) -> Iterator[tuple[int, Any]]:
    """Number and value of each field of a message."""
    position = 0
    while position < len(data):
        tag, position = _read_varint(data, position)
        value, position = _read_varint(data, position)
        if tag & 7 == _LEN:
            if position + value > len(data):
                raise ValueError("a field of the Example is longer than the record")
            yield tag >> 3, data[position : position + value]
            position += value
        elif tag & 7 == _VARINT:
            yield tag >> 3, value
        else:
            raise ValueError(f"the record is no Example: wire type {tag & 7}")


def _read_varint(data: NDArray[np.uint8], position: int) -> tuple[int, int]:
    result = 0
    for shift in range(0, 70, 7):
        if position >= len(data):
            break
        byte = int(data[position])
        position += 1
        result |= (byte & 0x7F) << shift
        if byte < 0x80:
            return result, position
    raise ValueError("the record is no Example: an integer does not end")


class _RecordFile(SampleFile):
    def __init__(self, file: IO[bytes], index: NDArray[np.int64]) -> None:
        self._file, self._index = file, index
        self.num_samples = len(index)

    def read(self, index: int) -> NDArray[Any]:
        """Read one record, verify both checksums, and parse it."""
        offset, length = self._index[index].tolist()
        self._file.seek(offset)
        record = read_exactly(self._file, length)
        if length < _LENGTH.size + _CRC.size:
            raise EOFError(f"the record has {length} bytes")
        payload_bytes, crc = _LENGTH.unpack(record[: _LENGTH.size].tobytes())
        if mask_crc32c(record[:8]) != crc:
            raise ValueError(f"wrong CRC of the length, byte {offset:,}")
        if payload_bytes != length - _LENGTH.size - _CRC.size:
            raise ValueError(f"the record has {payload_bytes:,} bytes, its index says {length - 16:,}")
        payload = record[_LENGTH.size : -_CRC.size]
        if mask_crc32c(payload) != _CRC.unpack(record[-_CRC.size :].tobytes())[0]:
            raise ValueError(f"wrong CRC of the data, byte {offset + _LENGTH.size:,}")
        image: NDArray[Any] = parse_example(payload)["image"]
        return image

    def close(self) -> None:
        """Close the file."""
        self._file.close()


class TfRecord(Format):
    """Records that are read in order or, by the index, at random."""

    name = "tfrecord"
    is_random = True
    extra_bytes = 80

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self._indexes: dict[str, NDArray[np.int64]] = {}

    def companions(self, key: str) -> tuple[str, ...]:
        """The index file, in a folder of its own."""
        folder, _, name = key.rpartition("/")
        data_folder = self.dataset.data_folder.rstrip("/")
        split = "valid" if f"{folder}/".startswith(f"{data_folder}/valid/") else "train"
        return (f"{data_folder}/index/{split}/{name}.idx",)

    def write(self, path: Path, companions: Sequence[Path], layout: FileLayout, samples: Samples) -> None:
        """Write record by record."""
        lines, offset = [], 0
        with path.open("wb") as file:
            for sample in samples:
                payload = serialize_example(sample.tobytes(), layout.dims[0])
                length = struct.pack("<Q", len(payload))
                file.write(length + _CRC.pack(mask_crc32c(length)))
                file.write(payload + _CRC.pack(mask_crc32c(payload)))
                size = len(payload) + _LENGTH.size + _CRC.size
                lines.append(f"{offset} {size}\n")
                offset += size
        companions[0].write_text("".join(lines), encoding="ascii")

    def open_file(self, key: str) -> SampleFile:
        """Open the file with its index, which is read once; without an index, the file is walked through."""
        return self.parse(key, lambda stream: _RecordFile(stream, self._index(key, stream)))

    def _index(self, key: str, stream: IO[bytes]) -> NDArray[np.int64]:
        if key not in self._indexes:
            name = self.companions(key)[0]
            is_there = self.storage.size(name) is not None
            self._indexes[key] = self._read_index(name) if is_there else self._walk(key, stream)
        return self._indexes[key]

    def _read_index(self, key: str) -> NDArray[np.int64]:
        with self.storage.open(key) as file:
            words = file.read().split()
        try:
            return np.array(words, np.int64).reshape(-1, 2)
        except ValueError as error:
            raise damage_error(key, None, "lines of an index are an offset and a length") from error

    def _walk(self, key: str, file: IO[bytes]) -> NDArray[np.int64]:
        size, offset = self.storage.size(key) or 0, 0
        rows: list[tuple[int, int]] = []
        while offset < size:
            file.seek(offset)
            head = read_exactly(file, min(_LENGTH.size, size - offset))
            is_cut = len(head) < _LENGTH.size
            if is_cut or mask_crc32c(head[:8]) != _LENGTH.unpack(head.tobytes())[1]:
                raise damage_error(key, len(rows), f"wrong CRC of the length, byte {offset:,}")
            length = _LENGTH.unpack(head.tobytes())[0] + _LENGTH.size + _CRC.size
            rows.append((offset, length))
            offset += length
        return np.array(rows, np.int64).reshape(-1, 2)
