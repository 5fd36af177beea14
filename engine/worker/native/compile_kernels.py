"""The sources of the engine's native kernels.

`python -m glimpse.engine.worker.native.compile_kernels FILE` compiles them ahead of time, for a wheel with `--package`.
"""

from pathlib import Path

from glimpse.native.compiler import Sources, main

KERNELS = Sources(
    name="native",
    folder=Path(__file__).parent,
    flags=(
        *("-std=c++17", "-O3", "-fPIC", "-fopenmp", "-fno-math-errno", "-fno-trapping-math"),
        "-Wno-psabi",  # vectors wider than the baseline's registers are only passed between inlined functions
        "-Werror=narrowing",  # which clang refuses
    ),
    variable="GLIMPSE_NATIVE_LIBRARY",
)

if __name__ == "__main__":
    main(KERNELS)
