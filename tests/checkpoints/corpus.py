"""A text for comparing tokenizers."""

from functools import cache

import numpy as np

from tests.paths import ROOT

SCRIPTS = (
    (0x20, 0x7F),
    (0xA0, 0x250),
    (0x370, 0x530),
    (0x590, 0x700),
    (0x900, 0xA00),
    (0xE00, 0xE80),
    (0x3040, 0x3100),
)
MORE_SCRIPTS = ((0x4E00, 0x5000), (0xAC00, 0xAE00), (0x1F300, 0x1F650), (0x300, 0x370), (0x2000, 0x2100))


@cache
def corpus() -> str:
    """More than 100 kB: this project's documents and code, and words of letters of many scripts."""
    pages = [
        (ROOT / name).read_text()
        for name in ("docs/operations.md", "docs/models.md", "docs/page.md", "docs/install.md", "server/settings.py")
    ]
    generator = np.random.default_rng(0)
    words: list[str] = []
    for start, end in (*SCRIPTS, *MORE_SCRIPTS):
        for length in generator.integers(1, 9, 150):
            word = "".join(map(chr, generator.integers(start, end, length)))
            words.append(word + " \n\t  2026'LL"[: int(generator.integers(0, 11))])
    return "\n".join(
        [*pages, "I'll don't WE'RE  x  =  12345.678e9;\r\n\r\n\t\tπ≈3,14159 👩‍👩‍👧‍👦🇪🇺 naïve e\u0301", *words]
    )
