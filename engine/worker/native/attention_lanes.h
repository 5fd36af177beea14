// The product of attention_fma.h with sums in registers.
//
// To be included inside an anonymous namespace, after what defines `Base`: vectors of kSide float32 lanes.

constexpr int kPanelRows = 8;
constexpr int kPanelStride = kRangeKeys + 16;  // so that the same place in several rows is not in the same cache set

static_assert(kPanelRows * kPanelStride * sizeof(float) <= sizeof(Workspace::panel), "a panel does not fit");

// Copies some rows of all segments, widened to float [num_rows][num_segments · depth] with a row stride of
// kPanelStride. Each is used for several columns: from memory, a float is broadcast by its load.
template <class T>
inline void widen_panel(const T* const* a, long offset, int num_segments, int depth, long stride, int num_rows,
                        Ahead<T>& ahead, float* panel) {
  for (int row = 0; row < num_rows; ++row) {
    float* to = panel + row * kPanelStride;
    for (int segment = 0; segment < num_segments; ++segment) {
      const T* from = a[segment] + offset + row * stride;
      for (int i = 0; i < depth; i += 64 / sizeof(T)) ahead.prefetch();
      for (int i = 0; i < depth; i += 2 * Base::kLanes, to += 2 * Base::kLanes) {
        Base::store(to, Base::widen(from + i));
        Base::store(to + Base::kLanes, Base::widen(from + i + Base::kLanes));
      }
    }
  }
}

// c[row][lane] = sum over i < depth of panel[row][i] · b[i][lane] for kRows rows and kVectors vectors, in order of i.
template <class Lanes, int kRows, int kVectors>
inline void multiply_tile(const float* panel, int depth, const float* b, int columns, float* c) {
  typename Lanes::Vector sums[kRows][kVectors];
#pragma GCC unroll 8  // or else GCC keeps the array in memory, before and after the loop over i
  for (int row = 0; row < kRows; ++row) {
    for (int j = 0; j < kVectors; ++j) sums[row][j] = Lanes::splat(0.0f);
  }
  for (int i = 0; i < depth; ++i) {
    typename Lanes::Vector right[kVectors];
    for (int j = 0; j < kVectors; ++j) right[j] = Lanes::load(b + i * columns + j * Lanes::kLanes);
    for (int row = 0; row < kRows; ++row) {
      const auto left = Lanes::splat(panel[row * kPanelStride + i]);
      for (int j = 0; j < kVectors; ++j) sums[row][j] = Lanes::fma(left, right[j], sums[row][j]);
    }
  }
#pragma GCC unroll 8
  for (int row = 0; row < kRows; ++row) {
    for (int j = 0; j < kVectors; ++j) Lanes::store(c + row * columns + j * Lanes::kLanes, sums[row][j]);
  }
}
