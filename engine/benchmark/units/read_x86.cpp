// Reads memory as fast as one thread can, in several access patterns.
#include <cstdint>

namespace {

typedef uint64_t Words __attribute__((vector_size(32), aligned(32)));

constexpr long kLine = 64;
constexpr long kStep = 4 * kLine;  // bytes that each stream advances in turn

// Reads `Streams` equal parts side by side, as kernels do with several panels of weights.
template <int Streams>
__attribute__((target("avx2"))) uint64_t read(const char* data, long bytes, long ahead) {
  const long part = bytes / Streams / kStep * kStep;
  Words seen[4] = {};
  for (long offset = 0; offset < part; offset += kStep) {
    for (int stream = 0; stream < Streams; ++stream) {
      const char* at = data + stream * part + offset;
      // A prefetch past the end of the array is harmless.
      if (ahead) {
        for (long line = 0; line < kStep; line += kLine) __builtin_prefetch(at + ahead + line);
      }
      const Words* words = reinterpret_cast<const Words*>(at);
      for (int i = 0; i < 8; ++i) seen[i % 4] |= words[i];
    }
  }
  const Words all = (seen[0] | seen[1]) | (seen[2] | seen[3]);
  return all[0] | all[1] | all[2] | all[3];
}

}  // namespace

// Returns the bitwise or of `bytes` bytes, less those that do not fill a step of every stream.
//
// data: aligned to 32 bytes. streams: 1, 2, 4 or 8. ahead: distance of prefetches in bytes; 0 for none.
extern "C" uint64_t units_read(const char* data, int64_t bytes, int streams, int64_t ahead) {
  switch (streams) {
    case 1:
      return read<1>(data, bytes, ahead);
    case 2:
      return read<2>(data, bytes, ahead);
    case 4:
      return read<4>(data, bytes, ahead);
    case 8:
      return read<8>(data, bytes, ahead);
    default:
      return 0;
  }
}
