// Packs matrices into panels and unpacks single rows; see types.h for the layout.
#if defined(__linux__)
#include <malloc.h>
#include <sys/mman.h>
#endif

#include <algorithm>
#include <cstring>

#include "types.h"

namespace glimpse {
namespace {

// The row of the matrix that a column of a panel stores; -1: padding.
int64_t source_row(const Weight& weight, int64_t panel, int64_t column) {
  int64_t width = width_of(weight);
  if (!weight.gated) {
    int64_t row = panel * kPanelWidth + column;
    return row < width ? row : -1;
  }
  int64_t row = panel * 16 + column % 16;
  return row < width ? row + (column / 16) * width : -1;
}

// Fills a panel line by line: a line stores two or four consecutive inputs of 16 rows of the matrix.
template <class T>
void pack_panel(const Weight& weight, const T* matrix, int64_t panel, char* to) {
  constexpr int64_t kGroup = 4 / sizeof(T);  // consecutive inputs of a group
  const T* rows[kPanelWidth];
  for (int64_t column = 0; column < kPanelWidth; ++column) {
    int64_t row = source_row(weight, panel, column);
    rows[column] = row < 0 ? nullptr : matrix + row * weight.in_features;
  }
  std::memset(to, 0, panel_bytes(weight));
  for (int64_t first = 0; first < weight.in_features; first += kGroup) {
    int64_t line = first / kGroup, bytes = std::min(kGroup, weight.in_features - first) * sizeof(T);
    for (int64_t column = 0; column < kPanelWidth; ++column) {
      if (!rows[column]) continue;
      char* group = to + line * kLineBytes + column * 4;
      if (bytes == 4) std::memcpy(group, rows[column] + first, 4);
      else std::memcpy(group, rows[column] + first, bytes);
    }
  }
}

// Fills a panel of float32 weights: all inputs with 32 output features each.
void pack_panel(const Weight& weight, const float* matrix, int64_t panel, char* to) {
  std::memset(to, 0, panel_bytes(weight));
  float* place = reinterpret_cast<float*>(to);
  for (int64_t column = 0; column < kPanelWidth; ++column) {
    const int64_t row = source_row(weight, panel, column);
    if (row < 0) continue;
    const float* from = matrix + row * weight.in_features;
    for (int64_t input = 0; input < weight.in_features; ++input) place[input * kPanelWidth + column] = from[input];
  }
}

template <class T>
void pack(const Weight& weight, const T* matrix) {
#pragma omp parallel for
  for (int64_t panel = 0; panel < num_panels(weight); ++panel)
    pack_panel(weight, matrix, panel,
               static_cast<char*>(const_cast<void*>(weight.panels)) + panel * panel_bytes(weight));
}

// Fills a panel of weights in groups from rows of bytes, block by block. Four bytes are those of a line.
void pack_group_panel(const Weight& weight, const char* matrix, int64_t panel, char* to) {
  std::memset(to, 0, panel_bytes(weight));
  const int64_t inputs = inputs_of_block(weight), lines = inputs * weight.group_bits / 32;
  for (int64_t column = 0; column < kPanelWidth; ++column) {
    const int64_t row = source_row(weight, panel, column);
    if (row < 0) continue;
    const char* from = matrix + row * (weight.in_features * weight.group_bits / 8);
    char* place = to + column * 4;
    for (int64_t block = 0; block < weight.in_features / inputs;
         ++block, from += lines * 4, place += lines * kLineBytes)
      for (int64_t line = 0; line < lines; ++line) std::memcpy(place + line * kLineBytes, from + line * 4, 4);
  }
}

// From [groups, out_features] to [panels][groups][32]; padding is zero.
template <class T>
void pack_groups(const Weight& weight, const T* values, T* packed) {
  const int64_t num_groups = num_steps(weight);
#pragma omp parallel for
  for (int64_t panel = 0; panel < num_panels(weight); ++panel)
    for (int64_t column = 0; column < kPanelWidth; ++column) {
      const int64_t row = source_row(weight, panel, column);
      for (int64_t group = 0; group < num_groups; ++group)
        packed[(panel * num_groups + group) * kPanelWidth + column] =
            row < 0 ? T{} : values[group * weight.out_features + row];
    }
}

void pack_in_groups(const Weight& weight, const char* matrix) {
#pragma omp parallel for
  for (int64_t panel = 0; panel < num_panels(weight); ++panel)
    pack_group_panel(weight, matrix, panel,
                     static_cast<char*>(const_cast<void*>(weight.panels)) + panel * panel_bytes(weight));
}

// Unpack the row of a matrix whose first inputs are at `place` of a panel.

void unpack_row(const float* place, const Weight& weight, float* to) {
  for (int64_t i = 0; i < weight.in_features; ++i) to[i] = place[i * kPanelWidth];
}

void unpack_row(const char* place, const Weight& weight, bf16* to) {
  for (int64_t i = 0; i < weight.in_features; ++i)
    to[i] = reinterpret_cast<const bf16*>(place + i / 2 * kLineBytes)[i % 2];
}

void from_float(float value, float* to) { *to = value; }
void from_float(float value, bf16* to) {  // to nearest, ties to even; weights are finite
  uint32_t bits;
  std::memcpy(&bits, &value, sizeof bits);
  *to = static_cast<bf16>((bits + 0x7FFF + (bits >> 16 & 1)) >> 16);
}

// Unpacks a row of weights in groups.
template <class T>
void unpack_group_row(const Weight& weight, int64_t row, T* to) {
  const int64_t inputs = inputs_of_block(weight), lines = inputs * weight.group_bits / 32, column = row % kPanelWidth;
  const char* panel = static_cast<const char*>(weight.panels) + row / kPanelWidth * panel_bytes(weight) + column * 4;
  for (int64_t i = 0; i < weight.in_features; ++i) {
    const int64_t number = (row / kPanelWidth * num_steps(weight) + i / weight.group_size) * kPanelWidth + column;
    const int64_t place = i % inputs % (lines * 4);  // of its byte in those of the row and block
    const auto byte = static_cast<uint8_t>(panel[(i / inputs * lines + place / 4) * kLineBytes + place % 4]);
    const int value = weight.group_bits == 8 ? byte : i % inputs == place ? byte & 15 : byte >> 4;
    const float scale = weight.group_scale[number];
    const float minimum = weight.group_minimum ? weight.group_minimum[number] : weight.group_zero[number] * scale;
    from_float(value * scale - minimum, to + i);
  }
}

}  // namespace
}  // namespace glimpse

using namespace glimpse;

extern "C" int64_t glimpse_packed_bytes(const Weight* weight) { return num_panels(*weight) * panel_bytes(*weight); }

extern "C" int64_t glimpse_packed_columns(const Weight* weight) { return num_panels(*weight) * kPanelWidth; }

// Number of groups of inputs times packed output features.
extern "C" int64_t glimpse_packed_groups(const Weight* weight) {
  return num_steps(*weight) * num_panels(*weight) * kPanelWidth;
}

// Packs `matrix` [out_features, in_features] into `weight->panels`: int8 if the weight has scales; if it has scales of
// groups as glimpse/engine/layers/group_quantized.py stores it.
extern "C" void glimpse_pack(const Weight* weight, const void* matrix) {
  if (has_groups(*weight)) pack_in_groups(*weight, static_cast<const char*>(matrix));
  else if (is_int8(*weight)) pack(*weight, static_cast<const int8_t*>(matrix));
  else if (is_float32(*weight)) pack(*weight, static_cast<const float*>(matrix));
  else pack(*weight, static_cast<const bf16*>(matrix));
}

// Packs one value per output feature (scales or a bias) in panel order; padding is zero.
extern "C" void glimpse_pack_columns(const Weight* weight, const float* values, float* packed) {
  for (int64_t panel = 0; panel < num_panels(*weight); ++panel)
    for (int64_t column = 0; column < kPanelWidth; ++column) {
      int64_t row = source_row(*weight, panel, column);
      packed[panel * kPanelWidth + column] = row < 0 ? 0 : values[row];
    }
}

// Packs scales or minima, [groups, out_features].
extern "C" void glimpse_pack_groups(const Weight* weight, const float* values, float* packed) {
  pack_groups(*weight, values, packed);
}

// Packs zero points, [groups, out_features].
extern "C" void glimpse_pack_zeros(const Weight* weight, const uint8_t* zeros, uint8_t* packed) {
  pack_groups(*weight, zeros, packed);
}

// Unpacks `count` rows of a matrix by index, to the type of activations: an embedding lookup in a packed output head.
// The matrix is not int8 with a scale for each output feature.
extern "C" void glimpse_unpack_rows(const Weight* weight, const int64_t* rows, int64_t count, void* unpacked) {
  for (int64_t index = 0; index < count; ++index) {
    const int64_t column = rows[index] % kPanelWidth, first = index * weight->in_features;
    const char* panel = static_cast<const char*>(weight->panels) + rows[index] / kPanelWidth * panel_bytes(*weight);
    if (has_groups(*weight))
      with_type(weight->dtype, [&](auto zero) {
        unpack_group_row(*weight, rows[index], static_cast<decltype(zero)*>(unpacked) + first);
      });
    else if (is_float32(*weight))
      unpack_row(reinterpret_cast<const float*>(panel) + column, *weight, static_cast<float*>(unpacked) + first);
    else unpack_row(panel + column * 4, *weight, static_cast<bf16*>(unpacked) + first);
  }
}

// Requests huge pages before memory is first written: streaming through small pages waits for page tables.
extern "C" void glimpse_advise_huge_pages(void* begin, int64_t bytes) {
#if defined(__linux__)
  constexpr uintptr_t kPage = 4096;
  const auto address = reinterpret_cast<uintptr_t>(begin);
  const uintptr_t first = (address + kPage - 1) / kPage * kPage, last = (address + bytes) / kPage * kPage;
  if (first < last) madvise(reinterpret_cast<void*>(first), last - first, MADV_HUGEPAGE);  // a hint, which may fail
#endif
}

// Returns freed memory to the system: unpacked matrices are freed between allocations that remain in use.
extern "C" void glimpse_return_freed_memory() {
#if defined(__linux__)
  malloc_trim(0);
#endif
}
