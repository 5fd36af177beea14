"""The number of scans of a JPEG, which decides how much memory a decoder needs."""

_START_OF_SCAN = 0xDA
_SEQUENTIAL = (0xC0, 0xC1)
_OTHER_FRAMES = frozenset({0xC2, 0xC3, 0xC5, 0xC6, 0xC7, 0xC9, 0xCA, 0xCB, 0xCD, 0xCE, 0xCF})


def has_one_scan(data: bytes) -> bool:
    """Returns whether the first scan of a file has all of its components, so that rows are decoded one by one.

    Of other files, such as progressive ones, a decoder keeps all coefficients in memory, whatever size it makes.
    """
    num_components, place = 0, 2
    while place + 4 <= len(data) and data[place] == 0xFF:
        marker = data[place + 1]
        if marker == 0xFF:  # padding
            place += 1
            continue
        if marker in _OTHER_FRAMES:
            return False
        if marker == _START_OF_SCAN:
            return data[place + 4 : place + 5] == bytes([num_components])
        if marker in _SEQUENTIAL:
            num_components = data[place + 9] if place + 9 < len(data) else 0
        place += 2 + int.from_bytes(data[place + 2 : place + 4], "big")
    return False
