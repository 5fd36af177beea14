"""Serialized tensors: detects the format and checks the claimed sizes before memory is allocated.

Safetensors files are read here. A file of `torch.save` is a pickle in a ZIP archive: the archive is checked here, and
`glimpse.media.embeddings.torch_files` loads it in a worker process.
"""

import io
import zipfile
from dataclasses import dataclass
from typing import TypeAlias

import msgspec

from glimpse.media.embeddings.tensor import Tensor, TensorType, invalid, make_tensor
from glimpse.media.errors import MediaError, MediaErrorCode, too_large

MAX_BYTES = 64 << 20
"""Limit on a serialized tensor, and on the tensor in it."""

_MAX_HEADER_BYTES = 64 << 10
_MAX_ENTRIES = 64
_ENTRY_MARK = b"PK\x01\x02"
_ZIP_MARK = b"PK\x03\x04"
_SAFETENSORS_TYPES = {
    "F32": TensorType.FLOAT32,
    "F16": TensorType.FLOAT16,
    "BF16": TensorType.BFLOAT16,
    "I64": TensorType.INT64,
}


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class SerializedTensor:
    """A tensor that has not been read yet."""

    data: bytes
    """A safetensors file or a file of `torch.save`."""


TensorSource: TypeAlias = Tensor | SerializedTensor


class _Entry(msgspec.Struct, frozen=True):
    """A tensor's entry in the header of a safetensors file."""

    dtype: str
    shape: tuple[int, ...]
    data_offsets: tuple[int, int]


_header_decoder: msgspec.json.Decoder[dict[str, msgspec.Raw]] = msgspec.json.Decoder(dict[str, msgspec.Raw])
_entry_decoder: msgspec.json.Decoder[_Entry] = msgspec.json.Decoder(_Entry)


def is_torch_file(data: bytes) -> bool:
    """Returns True for an archive of `torch.save` and False for a safetensors file.

    Raises:
        MediaError: TOO_LARGE, or UNSUPPORTED_FORMAT for anything else.
    """
    if len(data) > MAX_BYTES:
        raise too_large(MAX_BYTES, "a serialized tensor")
    if data.startswith(_ZIP_MARK):
        return True
    if data[8:9] == b"{":
        return False
    message = "expected a safetensors file or a file of torch.save, got an unknown format"
    if data.startswith(b"\x80"):
        message = "expected a safetensors file or a file of torch.save since version 1.6, got a pickle"
    raise MediaError(MediaErrorCode.UNSUPPORTED_FORMAT, message)


def read_safetensors(data: bytes) -> Tensor:
    """Reads the only tensor of a safetensors file.

    Raises:
        MediaError: INVALID_EMBEDDINGS.
    """
    num_bytes = int.from_bytes(data[:8], "little")
    if num_bytes > min(_MAX_HEADER_BYTES, len(data) - 8):
        raise invalid("the safetensors file is corrupt: its header exceeds the file or 64 KiB")
    entry = _only_entry(data[8 : 8 + num_bytes])
    dtype = _SAFETENSORS_TYPES.get(entry.dtype)
    if dtype is None:
        raise invalid(f"expected a tensor of type {', '.join(_SAFETENSORS_TYPES)}, got {entry.dtype[:16]!r}")
    body = memoryview(data)[8 + num_bytes :]
    if entry.data_offsets != (0, len(body)):
        raise invalid("the safetensors file is corrupt: its tensor does not span the bytes after the header")
    return make_tensor(dtype, entry.shape, body)


def _only_entry(header: bytes) -> _Entry:
    try:
        entries = _header_decoder.decode(header)
        entries.pop("__metadata__", None)
        if len(entries) != 1:
            raise invalid(f"expected a safetensors file with one tensor, got {len(entries)}")
        return _entry_decoder.decode(next(iter(entries.values())))
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise invalid("the safetensors file is corrupt: its header cannot be read") from error


def check_torch_file(data: bytes) -> None:
    """Checks an archive: it must have the structure of `torch.save` and claim no more bytes than it has.

    Raises:
        MediaError: INVALID_EMBEDDINGS.
    """
    if data.count(_ENTRY_MARK) > _MAX_ENTRIES:  # before memory is allocated for each
        raise invalid(f"expected an archive of at most {_MAX_ENTRIES} entries, as torch.save writes it, got more")
    try:
        with zipfile.ZipFile(io.BytesIO(data)) as archive:
            entries = archive.infolist()
    except (zipfile.BadZipFile, NotImplementedError, ValueError, OverflowError, UnicodeDecodeError) as error:
        raise invalid("the file of torch.save is corrupt or truncated") from error
    if any(entry.compress_type != zipfile.ZIP_STORED or entry.flag_bits & 1 for entry in entries):
        raise invalid("expected an archive without compression and encryption, as torch.save writes it")
    if sum(entry.file_size for entry in entries) > len(data):
        raise invalid("the archive is corrupt: it claims more bytes than it has")
    pickles = [entry for entry in entries if entry.filename.endswith("data.pkl")]
    if len(pickles) != 1 or pickles[0].file_size > _MAX_HEADER_BYTES:
        raise invalid("expected an archive that torch.save writes of one tensor")
