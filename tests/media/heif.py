"""HEIC files for tests: HEVC frames in boxes that are written here, since the decoder's package has no encoder."""

import re
import struct
from collections.abc import Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Any

import av
import numpy as np
import PIL.Image

from tests.media.videos import scheduling_policy_restored

_PARAMETER_SETS = (32, 33, 34)
_PRIMARY = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Item:
    """An item of a HEIF file."""

    kind: bytes
    data: bytes
    properties: Sequence[bytes] = ()
    references: Sequence[tuple[bytes, Sequence[int]]] = ()
    """Kinds and the ids of items, which start at 1."""
    is_hidden: bool = False
    """Only a part of another item."""


def box(kind: bytes, *parts: bytes) -> bytes:
    body = b"".join(parts)
    return struct.pack(">I4s", len(body) + 8, kind) + body


def full_box(kind: bytes, *parts: bytes, version: int = 0, flags: int = 0) -> bytes:
    return box(kind, struct.pack(">I", version << 24 | flags), *parts)


def heif(items: Sequence[Item], *, brand: bytes = b"heic") -> bytes:
    """Returns a file of these items, of which the first is the primary one."""
    head = box(b"ftyp", brand, bytes(4), b"mif1", brand)
    start = len(head) + len(_meta(items, 0)) + 8
    return head + _meta(items, start) + box(b"mdat", *(item.data for item in items))


def heic(image: PIL.Image.Image, *properties: bytes, bits: int = 8, exif: bytes = b"", alpha: bool = False) -> bytes:
    """Returns an image with further properties; `alpha` adds its last channel as an auxiliary image."""
    items = [coded(image.convert("RGB"), *properties, bits=bits)]
    if alpha:
        kind = full_box(b"auxC", b"urn:mpeg:hevc:2015:auxid:1\0")
        items.append(coded(image.getchannel("A").convert("RGB"), kind, references=[(b"auxl", [_PRIMARY])]))
    if exif:
        items.append(Item(kind=b"Exif", data=struct.pack(">I", 0) + exif, references=[(b"cdsc", [_PRIMARY])]))
    return heif(items)


def grid(tiles: Sequence[Item], *, rows: int, columns: int, width: int, height: int) -> bytes:
    """Returns an image of tiles, as phones write."""
    size = struct.pack(">BBBBII", 0, 1, rows - 1, columns - 1, width, height)
    ids = range(2, len(tiles) + 2)
    whole = Item(kind=b"grid", data=size, properties=[spatial_extents(width, height)], references=[(b"dimg", ids)])
    return heif([whole, *(replace(tile, is_hidden=True) for tile in tiles)])


def spatial_extents(width: int, height: int) -> bytes:
    return full_box(b"ispe", struct.pack(">II", width, height))


def rotation(quarters: int) -> bytes:
    """Returns the property of an image that is shown turned by so many quarters, counter-clockwise."""
    return box(b"irot", bytes([quarters]))


def mirror(axis: int) -> bytes:
    return box(b"imir", bytes([axis]))


def coded(
    image: PIL.Image.Image, *properties: bytes, bits: int = 8, references: Sequence[tuple[bytes, Sequence[int]]] = ()
) -> Item:
    """Returns an image as HEVC, nearly without loss."""
    units = [unit for unit in re.split(b"\0\0\0?\1", _hevc(np.asarray(image), bits)) if unit]
    sets = [unit for unit in units if _unit_type(unit) in _PARAMETER_SETS]
    slices = [unit for unit in units if _unit_type(unit) < 32]
    arrays = b"".join(struct.pack(">BHH", 0x80 | _unit_type(unit), 1, len(unit)) + unit for unit in sets)
    head = struct.pack(">BBI6xB", 1, 1 if bits == 8 else 2, 0x60000000, 90)
    depth = 0xF8 | (bits - 8)
    configuration = head + struct.pack(">HBBBBHBB", 0xF000, 0xFC, 0xFD, depth, depth, 0, 0x0F, len(sets)) + arrays
    own = [box(b"hvcC", configuration), spatial_extents(*image.size), *properties]
    data = b"".join(struct.pack(">I", len(unit)) + unit for unit in slices)
    return Item(kind=b"hvc1", data=data, properties=own, references=references)


def _unit_type(unit: bytes) -> int:
    return unit[0] >> 1 & 63


def _hevc(pixels: np.ndarray[Any, Any], bits: int) -> bytes:
    encoder: Any = av.CodecContext.create("libx265", "w")
    encoder.height, encoder.width, _ = pixels.shape
    encoder.pix_fmt = "yuv420p" if bits == 8 else f"yuv420p{bits}le"
    encoder.time_base = Fraction(1)
    encoder.options = {"x265-params": "log-level=none:keyint=1:repeat-headers=1:pools=none", "crf": "2"}
    with scheduling_policy_restored():
        frame = av.VideoFrame.from_ndarray(np.ascontiguousarray(pixels), format="rgb24")
        packets = [*encoder.encode(frame), *encoder.encode(None)]
    return b"".join(bytes(packet) for packet in packets)


def _meta(items: Sequence[Item], start: int) -> bytes:
    """Returns the description of items whose data begin at `start`."""
    handler = full_box(b"hdlr", bytes(4), b"pict", bytes(13))
    entries = [
        full_box(b"infe", struct.pack(">HH4sx", each, 0, item.kind), version=2, flags=item.is_hidden)
        for each, item in enumerate(items, 1)
    ]
    places, associations = b"", b""
    properties = list(dict.fromkeys(each for item in items for each in item.properties))
    for each, item in enumerate(items, 1):
        places += struct.pack(">HHHII", each, 0, 1, start, len(item.data))
        start += len(item.data)
        own = [properties.index(each) + 1 for each in item.properties]
        associations += struct.pack(">HB", each, len(own)) + bytes(0x80 | index for index in own)
    return full_box(
        b"meta",
        handler,
        full_box(b"pitm", struct.pack(">H", _PRIMARY)),
        full_box(b"iinf", struct.pack(">H", len(items)), *entries),
        full_box(b"iloc", struct.pack(">HH", 0x4400, len(items)), places),
        _references(items),
        box(
            b"iprp",
            box(b"ipco", *properties),
            full_box(b"ipma", struct.pack(">I", len(items)), associations),
        ),
    )


def _references(items: Sequence[Item]) -> bytes:
    boxes = [
        box(kind, struct.pack(f">HH{len(to)}H", each, len(to), *to))
        for each, item in enumerate(items, 1)
        for kind, to in item.references
    ]
    return full_box(b"iref", *boxes) if boxes else b""
