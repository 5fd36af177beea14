// What Python asks about the processor, and the threads of OpenMP.
#include "cpu.h"

#include <omp.h>

// Returns whether this machine has a level. Requests AMX when asked for it, so ask before threads compute.
extern "C" int glimpse_cpu_supports(int level) { return glimpse::has_level(level); }

// Sets the number of threads of the calling thread's parallel regions. g++'s are torch's already; clang++'s are not.
extern "C" void glimpse_set_num_threads(int num_threads) { omp_set_num_threads(num_threads); }

// Starts a team of OpenMP threads, which sleep until the calling thread ends.
extern "C" void glimpse_start_team(int num_threads) {
#pragma omp parallel num_threads(num_threads)
  {
#pragma omp barrier
  }
}
