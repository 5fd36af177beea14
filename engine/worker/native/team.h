// How a team of OpenMP threads divides its work.
#pragma once

#include <omp.h>

#include "kernels.h"

namespace glimpse {

// This thread's share of `count` items.
inline Range share(int64_t count) {
  int64_t threads = omp_get_num_threads(), thread = omp_get_thread_num();
  return {count * thread / threads, count * (thread + 1) / threads};
}

}  // namespace glimpse
