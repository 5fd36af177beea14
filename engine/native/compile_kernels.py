"""What the engine's kernels are compiled from.

`python -m glimpse.engine.native.compile_kernels FILE` compiles them beforehand.
"""

from pathlib import Path

from glimpse.native.compiler import Sources, main

KERNELS = Sources(
    name="native",
    folder=Path(__file__).parent,
    # `-Wno-psabi`: vectors wider than the baseline's registers are passed between inlined functions only.
    flags=("-std=c++17", "-O3", "-fPIC", "-fopenmp", "-fno-math-errno", "-fno-trapping-math", "-Wno-psabi"),
    variable="GLIMPSE_NATIVE_LIBRARY",
)

if __name__ == "__main__":
    main(KERNELS)
