"""Sources of the native resampler. `python -m glimpse.media.native.compile_resampler FILE` compiles them."""

from pathlib import Path

from glimpse.native.compiler import Sources, main

KERNELS = Sources(
    name="media",
    folder=Path(__file__).parent,
    # `-ffp-contract=off` rounds weights after each operation, as Pillow does.
    flags=("-std=c++17", "-O3", "-fPIC", "-ffp-contract=off"),
    variable="GLIMPSE_MEDIA_LIBRARY",
)

if __name__ == "__main__":
    main(KERNELS)
