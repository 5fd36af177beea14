"""The machine's limits: memory read rate, and the arithmetic rate of each kind of unit.

    python -m bench.engine.limits
    python -m bench.engine.limits --threads 1

`glimpse.engine.benchmark.limits` measures them.
"""

import argparse

from bench.figures import significant, table
from glimpse.engine.benchmark.limits import torch_limits
from glimpse.engine.benchmark.units.library import UNITS, read_rate, unit_levels, unit_rate
from glimpse.native.processors import usable_processors


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--threads", type=int, default=len(usable_processors()), help="(default: all)")
    parser.add_argument("--repeats", type=int, default=9, help="of each loop (default: 9)")
    arguments = parser.parse_args()
    levels = unit_levels()
    if not levels:
        print(torch_limits(arguments.threads, arguments.repeats))
        return
    rate = read_rate(num_threads=arguments.threads, repeats=arguments.repeats)
    rows = [["memory read", "", f"{significant(rate / 1e9)} GB/s"]]
    for unit in UNITS:
        if unit.level in levels:
            rate = unit_rate(unit, num_threads=arguments.threads, repeats=arguments.repeats)
            rows.append([unit.name, unit.level.name, f"{significant(rate / 1e12)} T/s"])
    print(table(["what", "level", "rate, operations or bytes"], rows))


if __name__ == "__main__":
    main()
