"""Serialised tensors: which format the bytes are of, and what they claim before anything is made of them.

safetensors are read here. What `torch.save` writes is a pickle in a ZIP archive: here the archive is looked at, and
`glimpse.media.embeddings.torch_files` has it loaded where nothing else can come to harm.
"""

import io
import zipfile
from dataclasses import dataclass
from typing import TypeAlias

import msgspec

from glimpse.media.embeddings.tensor import Tensor, TensorType, invalid, make_tensor
from glimpse.media.errors import MediaError, MediaErrorCode

MAX_BYTES = 64 << 20
"""Of a serialised tensor, and of the tensor in it."""

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
    """A tensor that is not read yet."""

    data: bytes
    """safetensors, or what `torch.save` writes."""


TensorSource: TypeAlias = Tensor | SerializedTensor


class _Entry(msgspec.Struct, frozen=True):
    """What the header of a safetensors file says of a tensor."""

    dtype: str
    shape: tuple[int, ...]
    data_offsets: tuple[int, int]


_header: msgspec.json.Decoder[dict[str, msgspec.Raw]] = msgspec.json.Decoder(dict[str, msgspec.Raw])
_entry: msgspec.json.Decoder[_Entry] = msgspec.json.Decoder(_Entry)


def is_torch_file(data: bytes) -> bool:
    """Whether the bytes are an archive as `torch.save` writes it, else they are safetensors.

    Raises:
        MediaError: they are too many (TOO_LARGE), or begin like neither (UNSUPPORTED_FORMAT).
    """
    if len(data) > MAX_BYTES:
        raise MediaError(MediaErrorCode.TOO_LARGE, f"the serialised tensor is larger than {MAX_BYTES} bytes")
    if data.startswith(_ZIP_MARK):
        return True
    if data[8:9] == b"{":
        return False
    message = "this is neither a safetensors file nor what torch.save writes"
    if data.startswith(b"\x80"):
        message = "this is a pickle; give a safetensors file, or what torch.save writes since version 1.6"
    raise MediaError(MediaErrorCode.UNSUPPORTED_FORMAT, message)


def read_safetensors(data: bytes) -> Tensor:
    """The only tensor of a safetensors file.

    Raises:
        MediaError: INVALID_EMBEDDINGS.
    """
    num_bytes = int.from_bytes(data[:8], "little")
    if num_bytes > min(_MAX_HEADER_BYTES, len(data) - 8):
        raise invalid("the safetensors file is damaged: its header is longer than itself, or than 64 KiB")
    entry = _only_entry(data[8 : 8 + num_bytes])
    dtype = _SAFETENSORS_TYPES.get(entry.dtype)
    if dtype is None:
        raise invalid(f"the tensor is of type {entry.dtype[:16]!r}; {', '.join(_SAFETENSORS_TYPES)} are accepted")
    body = memoryview(data)[8 + num_bytes :]
    if entry.data_offsets != (0, len(body)):
        raise invalid("the safetensors file is damaged: its tensor's bytes are not those after the header")
    return make_tensor(dtype, entry.shape, body)


def _only_entry(header: bytes) -> _Entry:
    try:
        entries = _header.decode(header)
        entries.pop("__metadata__", None)
        if len(entries) != 1:
            raise invalid(f"the safetensors file has {len(entries)} tensors; one is expected")
        return _entry.decode(next(iter(entries.values())))
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise invalid("the safetensors file is damaged: its header cannot be read") from error


def check_torch_file(data: bytes) -> None:
    """Refuses an archive that claims more than is there, or what `torch.save` does not write.

    Raises:
        MediaError: INVALID_EMBEDDINGS.
    """
    if data.count(_ENTRY_MARK) > _MAX_ENTRIES:  # before each takes memory
        raise invalid(
            f"the archive has more than {_MAX_ENTRIES} entries; torch.save of one tensor writes fewer than ten"
        )
    try:
        with zipfile.ZipFile(io.BytesIO(data)) as archive:
            entries = archive.infolist()
    except (zipfile.BadZipFile, NotImplementedError, ValueError, OverflowError, UnicodeDecodeError) as error:
        raise invalid("what torch.save wrote is damaged or not complete") from error
    if any(entry.compress_type != zipfile.ZIP_STORED or entry.flag_bits & 1 for entry in entries):
        raise invalid("the archive is compressed or encrypted; torch.save does neither")
    if sum(entry.file_size for entry in entries) > len(data):
        raise invalid("the archive claims more bytes than are there")
    pickles = [entry for entry in entries if entry.filename.endswith("data.pkl")]
    if len(pickles) != 1 or pickles[0].file_size > _MAX_HEADER_BYTES:
        raise invalid("the archive is not what torch.save writes of one tensor")
