// How a team of OpenMP threads divides its work.
#pragma once

#include <omp.h>

#include <algorithm>
#include <atomic>

#include "kernels.h"

namespace glimpse {

// This thread's share of `count` items.
inline Range share(int64_t count) {
  int64_t threads = omp_get_num_threads(), thread = omp_get_thread_num();
  return {count * thread / threads, count * (thread + 1) / threads};
}

// Items that threads take as they finish others: a core that is slower, or that other work slows down, takes fewer.
class WorkQueue {
 public:
  // Called before a barrier, by any thread.
  void refill() { next_.store(0, std::memory_order_relaxed); }

  // Takes the next of `count` items, at least `least` unless fewer are left. The more are left, the more are taken,
  // because consecutive items are read in order.
  Range take(int64_t count, int64_t least) {
    const int64_t parts = kPartsOfThread * omp_get_num_threads();
    int64_t begin = next_.load(std::memory_order_relaxed), end;
    do end = std::min(count, begin + std::max((count - begin) / parts / least, int64_t{1}) * least);
    while (begin < count && !next_.compare_exchange_weak(begin, end, std::memory_order_relaxed));
    return {begin, end};
  }

  // Takes the next item alone, of those that begin with the most work.
  int64_t take_one() { return next_.fetch_add(1, std::memory_order_relaxed); }

 private:
  static constexpr int64_t kPartsOfThread = 2;
  alignas(64) std::atomic<int64_t> next_{0};
};

}  // namespace glimpse
