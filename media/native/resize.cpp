// Resizes 8-bit RGB images like Pillow: in two passes, with 8-bit values between them.
//
// Both passes process sixteen rows at a time. The vertical pass keeps the rows that it needs again. The horizontal pass
// transposes sixteen rows to a tile, in which the pixels of a column are consecutive. So both passes compute weighted
// sums of consecutive bytes.
#include <algorithm>
#include <cstring>
#include <new>

#include "kernels.h"
#include "weights.h"

namespace glimpse {
namespace {

constexpr int64_t kBehind = 4;  // samples past the end that are read, with weights of zero

struct Size {
  int64_t width, height;
};

int64_t whole_blocks(int64_t bytes) { return (bytes + kBlockBytes - 1) / kBlockBytes * kBlockBytes; }

// `next` of the image and of each pass returns the next sixteen rows; rows past the last one are undefined.

class RgbImage {
 public:
  RgbImage(const uint8_t* pixels, Size size, int64_t pixel_bytes)
      : size(size), pixel_bytes(pixel_bytes), pixels_(pixels) {}

  void next(const uint8_t** rows) {
    for (int64_t i = 0; i < kTileRows; ++i)
      rows[i] = pixels_ + std::min(done_ + i, size.height - 1) * size.width * pixel_bytes;
    done_ += kTileRows;
  }

  const Size size;
  const int64_t pixel_bytes;

 private:
  const uint8_t* const pixels_;  // [height, width, pixel_bytes]
  int64_t done_ = 0;
};

// Resamples each row to another width.
template <class Source>
class HorizontalPass {
 public:
  HorizontalPass(Source& source, int64_t width, Filter filter, const Kernel& kernel)
      : size{width, source.size.height}, source_(source), kernel_(kernel),
        windows_(filter_windows(filter, source.size.width, width, kernel)), row_bytes_(width * 3 + 13),
        tile_((source.size.width + kBehind) * kBlockBytes), resized_((width + kBehind) * kBlockBytes),
        rows_(kTileRows * row_bytes_) {}

  void next(const uint8_t** rows) {
    source_.next(rows);
    kernel_.to_tile(rows, source_.size.width, source_.pixel_bytes, tile_.data());
    kernel_.resample_columns(tile_.data(), windows_.each.data(), size.width, resized_.data());
    kernel_.to_rows(resized_.data(), size.width, rows_.data(), row_bytes_);
    for (int64_t i = 0; i < kTileRows; ++i) rows[i] = &rows_[i * row_bytes_];
  }

  const Size size;
  static constexpr int64_t pixel_bytes = 3;

 private:
  Source& source_;
  const Kernel& kernel_;
  const Windows windows_;
  const int64_t row_bytes_;
  std::vector<uint8_t> tile_, resized_, rows_;
};

// Resamples each column to another height.
template <class Source>
class VerticalPass {
 public:
  VerticalPass(Source& source, int64_t height, Filter filter, const Kernel& kernel)
      : size{source.size.width, height}, pixel_bytes(source.pixel_bytes), source_(source), kernel_(kernel),
        windows_(filter_windows(filter, source.size.height, height, kernel)),
        row_bytes_(whole_blocks(size.width * pixel_bytes)), capacity_(2 * (windows_.longest + kTileRows)),
        cached_rows_((capacity_ + kBehind) * row_bytes_), rows_(kTileRows * row_bytes_) {}

  void next(const uint8_t** rows) {
    const int64_t count = std::min(kTileRows, size.height - done_);
    for (int64_t i = 0; i < count; ++i) {
      Window window = windows_.each[done_ + i];
      read(window.first, window.first + window.num_groups * kernel_.group);
      window.first -= first_;
      kernel_.resample_rows(cached_rows_.data(), row_bytes_, window, &rows_[i * row_bytes_]);
    }
    done_ += count;
    for (int64_t i = 0; i < kTileRows; ++i) rows[i] = &rows_[i * row_bytes_];
  }

  const Size size;
  const int64_t pixel_bytes;

 private:
  // Reads the source's rows from `first` up to `end` into the row cache.
  void read(int64_t first, int64_t end) {
    for (; end_ < std::min(end, source_.size.height); end_ += kTileRows) {
      if (end_ - first_ + kTileRows > capacity_) {
        std::memmove(cached_rows_.data(), &cached_rows_[(first - first_) * row_bytes_], (end_ - first) * row_bytes_);
        first_ = first;
      }
      const uint8_t* rows[kTileRows];
      source_.next(rows);
      for (int64_t i = 0; i < kTileRows; ++i)
        std::memcpy(&cached_rows_[(end_ - first_ + i) * row_bytes_], rows[i], size.width * pixel_bytes);
    }
  }

  Source& source_;
  const Kernel& kernel_;
  const Windows windows_;
  const int64_t row_bytes_, capacity_;  // rows
  std::vector<uint8_t> cached_rows_, rows_;
  int64_t first_ = 0, end_ = 0;  // range of the source's rows in the cache
  int64_t done_ = 0;
};

template <class Source>
void write(Source&& source, uint8_t* to) {
  const int64_t row_bytes = source.size.width * 3;
  for (int64_t y = 0; y < source.size.height; y += kTileRows) {
    const uint8_t* rows[kTileRows];
    source.next(rows);
    const int64_t count = std::min(kTileRows, source.size.height - y);
    for (int64_t i = 0; i < count; ++i) std::memcpy(to + (y + i) * row_bytes, rows[i], row_bytes);
  }
}

// Values are rounded between the passes, so their order must be that of Pillow.
void resize(RgbImage& image, Size to, Filter filter, const Kernel& kernel, uint8_t* resized) {
  const int64_t fewer_rows = image.size.height - to.height, fewer_columns = image.size.width - to.width;
  if (fewer_rows > 0 && fewer_rows > 2 * fewer_columns) {
    VerticalPass vertical(image, to.height, filter, kernel);
    write(HorizontalPass(vertical, to.width, filter, kernel), resized);
  } else {
    HorizontalPass horizontal(image, to.width, filter, kernel);
    write(VerticalPass(horizontal, to.height, filter, kernel), resized);
  }
}

}  // namespace
}  // namespace glimpse

extern "C" {

// Returns the highest level of this machine.
int glimpse_resize_level() { return glimpse::highest_level(); }

// [height, width, pixel_bytes] → [to_height, to_width, 3]; pixel_bytes is 3 or 4, sides are 1 to 2^24,
// `filter` is a value of Filter.
// Returns 0 on success and 1 if memory is exhausted.
int glimpse_resize(int level, int filter, const uint8_t* pixels, int64_t width, int64_t height, int64_t pixel_bytes,
                   uint8_t* resized, int64_t to_width, int64_t to_height) {
  using namespace glimpse;
  try {
    RgbImage image(pixels, {width, height}, pixel_bytes);
    resize(image, {to_width, to_height}, static_cast<Filter>(filter), kernel_of(level), resized);
    return 0;
  } catch (const std::bad_alloc&) {
    return 1;
  }
}

}  // extern "C"
