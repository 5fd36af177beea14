// Pillow's filter weights, bit for bit: the operations and their order are those of Pillow.
#include "weights.h"

#include <algorithm>
#include <cmath>

namespace glimpse {
namespace {

constexpr double kPi = 3.14159265358979323846;

struct Shape {
  double support;  // radius
  double (*weight)(double x);
};

double bicubic(double x) {
  constexpr double a = -0.5;
  x = std::fabs(x);
  if (x < 1.0) return ((a + 2.0) * x - (a + 3.0)) * x * x + 1;
  if (x < 2.0) return (((x - 5) * x + 8) * x - 4) * a;
  return 0.0;
}

double sinc(double x) {
  if (x == 0.0) return 1.0;
  x = x * kPi;
  return std::sin(x) / x;
}

double lanczos(double x) { return -3.0 <= x && x < 3.0 ? sinc(x) * sinc(x / 3) : 0.0; }

double triangle(double x) { return std::max(0.0, 1.0 - std::abs(x)); }

Shape shape_of(Filter filter) {
  if (filter == Filter::kLanczos) return {3.0, lanczos};
  return filter == Filter::kBilinear ? Shape{1.0, triangle} : Shape{2.0, bicubic};
}

int32_t fixed_point(double weight) {
  return static_cast<int32_t>((weight < 0 ? -0.5 : 0.5) + weight * (1 << kFractionBits));
}

// Returns the lowest bits of a number as a signed number.
int32_t lowest(int32_t number, int bits) {
  return static_cast<int32_t>(static_cast<uint32_t>(number) << (32 - bits)) >> (32 - bits);
}

// Computes the windows of one line.
class Line {
 public:
  Line(Filter filter, int64_t samples, int64_t resized, const Kernel& kernel)
      : shape_(shape_of(filter)), samples_(samples), scale_(static_cast<double>(samples) / resized),
        stretch_(std::max(scale_, 1.0)), kernel_(kernel) {}

  // Returns the window of an output sample and appends its words.
  Window window(int64_t index, std::vector<int32_t>& words) {
    const int64_t first = compute_weights(index);
    const int64_t num_groups = (weights_.size() + kernel_.group - 1) / kernel_.group;
    weights_.resize(num_groups * kernel_.group);
    for (int64_t group = 0; group < num_groups; ++group) pack(&weights_[group * kernel_.group], words);
    return {first, num_groups, nullptr};
  }

 private:
  // Computes the weights of an output sample; returns the index of the first input sample.
  int64_t compute_weights(int64_t index) {
    const double center = (index + 0.5) * scale_, reach = shape_.support * stretch_, shrink = 1.0 / stretch_;
    const int64_t first = std::max<int64_t>(static_cast<int64_t>(center - reach + 0.5), 0);
    const int64_t end = std::min(static_cast<int64_t>(center + reach + 0.5), samples_);
    double sum = 0.0;
    exact_.clear();
    for (int64_t i = 0; i < end - first; ++i) {
      exact_.push_back(shape_.weight((i + first - center + 0.5) * shrink));
      sum += exact_.back();
    }
    weights_.clear();
    for (double weight : exact_) weights_.push_back(fixed_point(sum != 0.0 ? weight / sum : weight));
    return first;
  }

  void pack(int32_t* weights, std::vector<int32_t>& words) const {
    const int bits = 32 / kernel_.group;
    for (int digit = 0; digit < kernel_.digits; ++digit) {
      uint32_t word = 0;
      for (int i = 0; i < kernel_.group; ++i) {
        const int32_t value = lowest(weights[i], bits);
        word |= (static_cast<uint32_t>(value) & (~0u >> (32 - bits))) << (i * bits);
        weights[i] = (static_cast<int64_t>(weights[i]) - value) >> bits;
      }
      words.push_back(static_cast<int32_t>(word));
    }
  }

  const Shape shape_;
  const int64_t samples_;
  const double scale_, stretch_;
  const Kernel& kernel_;
  std::vector<double> exact_;
  std::vector<int32_t> weights_;
};

}  // namespace

Windows filter_windows(Filter filter, int64_t samples, int64_t resized, const Kernel& kernel) {
  Line line(filter, samples, resized, kernel);
  Windows windows;
  for (int64_t i = 0; i < resized; ++i) {
    windows.each.push_back(line.window(i, windows.words));
    windows.longest = std::max(windows.longest, windows.each.back().num_groups * kernel.group);
  }
  const int32_t* words = windows.words.data();
  for (Window& window : windows.each) {
    window.words = words;
    words += window.num_groups * kernel.digits;
  }
  return windows;
}

}  // namespace glimpse
