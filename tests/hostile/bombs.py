"""Compressed streams that become large, made without compressing as much."""

import struct
import zlib

_UNIT_BYTES = 1 << 20


def repeated(byte: bytes, num_bytes: int) -> bytes:
    """Returns a zlib stream of a byte that is repeated, about a thousandth as long."""
    unit, (times, rest) = byte * _UNIT_BYTES, divmod(num_bytes, _UNIT_BYTES)
    first, last = (zlib.compressobj(9, wbits=-zlib.MAX_WBITS) for _ in range(2))
    # After a full flush a decompressor refers to nothing before.
    block = first.compress(unit) + first.flush(zlib.Z_FULL_FLUSH)
    end = last.compress(byte * rest) + last.flush()
    checksum = zlib.adler32(byte * rest, _repeated_checksum(unit, times))
    return b"\x78\xda" + block * times + end + struct.pack(">I", checksum)


def _repeated_checksum(unit: bytes, times: int) -> int:
    checksum = zlib.adler32(b"")
    for _ in range(times):
        checksum = zlib.adler32(unit, checksum)
    return checksum
