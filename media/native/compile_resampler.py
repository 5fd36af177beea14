"""The sources of the native resampler.

`python -m glimpse.media.native.compile_resampler FILE` compiles them ahead of time.
"""

from pathlib import Path

from glimpse.native.compiler import Sources, main

KERNELS = Sources(
    name="media",
    folder=Path(__file__).parent,
    # `-ffp-contract=off`: weights are rounded after each operation, as in Pillow.
    flags=("-std=c++17", "-O3", "-fPIC", "-ffp-contract=off"),
    variable="GLIMPSE_MEDIA_LIBRARY",
)

if __name__ == "__main__":
    main(KERNELS)
