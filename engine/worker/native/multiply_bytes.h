// Products of weights of 4 or 8 bits in groups and activations that are quantized to int8 by groups. Included after
// dots.h, in the same namespace.
//
// A group's sums are exact: Σ value · x, with values from 0 to 15, or to 255, and Σ x. They are then multiplied by the
// group's scale and minimum and added in order in float32, so a row's result is bit-identical for any number of rows,
// and at every level.
#pragma once

// AVX2 without dot products: sums of 16 bits take the registers, so those of 32 bits that they are added to are stored.
constexpr bool kStoresSums = GLIMPSE_LANES == 8 && !GLIMPSE_DOTS;
// Rows whose sums are in registers at a time, where weights of 4 bits that are widened take some, and vectors of a
// panel.
constexpr int group_rows(int bits) {
  if (kStoresSums) return bits == 4 ? 4 : 6;
  return kPaired == 2 || GLIMPSE_LANES == 16 ? 8 : GLIMPSE_DOTS ? 4 : 2;
}
constexpr int group_vectors(int rows) {
  if (kPaired == 2) return rows <= 4 ? kTileVectors : kTileVectors / 2;
  return GLIMPSE_LANES == 16 || rows == 1 ? 2 * kTileVectors : kTileVectors;
}

constexpr int64_t kBlockLines = 4;                                           // of 32 inputs of int4 weights
constexpr int64_t kInputBytes = kByteInputs == kTileInputs ? 1 : kTileRows;  // from inputs of a row to those after them
// Whether products of 8 bits are exact: NEON's dot products have weights with a sign.
constexpr bool kMultipliesBytes = GLIMPSE_DOTS == 2 || (GLIMPSE_DOTS && GLIMPSE_LANES != 4);

// Whether the weight's activations are stored in bytes.
static inline bool reads_bytes(const Weight& weight) {
  return is_int4(weight) || (kMultipliesBytes && weight.byte_inputs);
}

// Adds the products of a block of 32 inputs. Rows are even where they are paired, and their sums mixed.
template <int kBits, int kRows, int kGroupVectors>
static inline __attribute__((always_inline)) void add_block(const char* weights, int64_t second, const char* x,
                                                            i32v (&sums)[kRows][kGroupVectors]) {
  constexpr int32_t kNibbles = 0x0f0f0f0f;
  constexpr int kParts = 8 / kBits;  // of the bytes of a line: nibbles of inputs 16 apart
  Fours partial[kRows][kGroupVectors];
#pragma GCC unroll 16
  for (int row = 0; row < kRows; ++row)
#pragma GCC unroll 16
    for (int v = 0; v < kGroupVectors; ++v) partial[row][v] = begin_fours(sums[row][v]);
  // Else the compiler loads several lines ahead, and spills sums.
#pragma GCC unroll kStoresSums ? 8 : 1
  for (int line = 0; line < kBlockLines * kBits / 4; line += kPaired) {
    if (kStoresSums) __asm__ volatile("" ::: "memory");
    i32v parts[kParts][kGroupVectors][kPaired];
    for (int v = 0; v < kGroupVectors; ++v)
      for (int half = 0; half < kPaired; ++half) {
        const i32v bytes = load_weights(place_in_panels(weights + line * kLineBytes, second, v), half);
        for (int part = 0; part < kParts; ++part)
          parts[part][v][half] = kBits == 8 ? bytes : (part ? bytes >> 4 : bytes) & kNibbles;
      }
#pragma GCC unroll 16
    for (int row = 0; row < kRows; row += kPaired) {
      const char* inputs = x + row * kByteInputs + line * 4 * kInputBytes;
      i32v bytes[kParts];
      for (int part = 0; part < kParts; ++part)
        bytes[part] = load_bytes_of_rows(inputs + part * (kTileInputs / 2) * kInputBytes);
#pragma GCC unroll 16
      for (int v = 0; v < kGroupVectors; ++v)
#pragma GCC unroll 2
        for (int part = 0; part < kParts; ++part)
          for (int half = 0; half < kPaired; ++half)
            partial[row + half][v] = add_fours(partial[row + half][v], parts[part][v][half], bytes[part]);
    }
  }
#pragma GCC unroll 16
  for (int row = 0; row < kRows; ++row)
#pragma GCC unroll 16
    for (int v = 0; v < kGroupVectors; ++v) sums[row][v] = end_fours(sums[row][v], partial[row][v]);
  if (kStoresSums && kRows > 2) __asm__("" : "+m"(sums));  // else the compiler spills the sums of 16 bits instead
}

// Multiplies rows [first, first + kRows) by vectors of a panel from `vector` on.
template <int kBits, int kRows, int kGroupVectors>
static inline void multiply_groups(const Block& block, const Weight& weight, Prefetches& shared, int64_t first,
                                   int64_t vector) {
  constexpr int64_t kBlockBytes = kTileInputs * kPanelWidth * kBits / 8;  // 32 inputs of a panel
  const int64_t num_blocks = weight.group_size / kTileInputs;
  int64_t feature = (block.index * num_steps(weight) + block.first_step) * kPanelWidth + vector * kLanes;
  const GroupNumbers numbers(weight);
  const char* weights = block.panel + vector * (4 * kLanes);
  const int64_t second = second_panel_bytes(block), second_feature = (num_steps(weight) - 1) * kPanelWidth;
  const char* x = block.tiles + first * kByteInputs;
  const GroupRow* groups = block.groups + first;
  Prefetches prefetches = shared;  // a copy, which stays in registers
  float* const stored = block.sums + place_of_sums(first, vector);
  for (int row = 0; row < kRows; ++row)
    for (int v = 0; v < kGroupVectors; ++v)
      if (!block.adds) store(stored + place_of_sums(row, v), f32v{});
  for (int64_t step = 0; step < block.num_steps; ++step) {
    i32v sums[kRows][kGroupVectors];
#pragma GCC unroll 16
    for (int row = 0; row < kRows; ++row)
#pragma GCC unroll 16
      for (int v = 0; v < kGroupVectors; ++v) sums[row][v] = i32v{};
    for (int64_t i = 0; i < num_blocks; ++i, weights += kBlockBytes, x += kTileRows * kTileInputs) {
      prefetches.prefetch_part(i, num_blocks);
      add_block<kBits, kRows, kGroupVectors>(weights, second, x, sums);
    }
    prefetches.end_step();
    for (int row = 0; row < kRows; row += kPaired)
      for (int v = 0; v < kGroupVectors; ++v) separate_rows(sums[row][v], sums[row + kPaired - 1][v]);
    for (int v = 0; v < kGroupVectors; ++v) {
      const int64_t number = feature + v * kLanes + (v < kVectorsOfPanel ? 0 : second_feature);
      const f32v scales = numbers.scales(number), minima = numbers.minima(number);
      for (int row = 0; row < kRows; ++row) {  // added in memory, since registers are needed for the next group
        float* place = stored + place_of_sums(row, v);
        store(place, add_group(load<f32v>(place), sums[row][v], scales, minima, groups[row]));
      }
    }
    feature += kPanelWidth;
    groups += kTileRows;
  }
  shared = prefetches;
}

// Multiplies `rows` rows, at most kRows, by both tiles of a panel. A row that is paired with none has one beyond them,
// which a tile has, too.
template <int kBits, int kRows>
static void multiply_groups_up_to(const Block& block, const Weight& weight, Prefetches& prefetches, int64_t first,
                                  int64_t rows) {
  if constexpr (kRows > 0) {
    if (rows <= kRows - kPaired)
      return multiply_groups_up_to<kBits, kRows - kPaired>(block, weight, prefetches, first, rows);
    for (int64_t vector = 0; vector < 2 * kTileVectors; vector += group_vectors(kRows))
      multiply_groups<kBits, kRows, group_vectors(kRows)>(block, weight, prefetches, first, vector);
  }
}

template <int kBits>
static void multiply_bits(const Block& block, const Weight& weight) {
  multiply_few_at_a_time<group_rows(kBits), kPaired>(
      block, [](int64_t rows) { return 2 * kTileVectors / group_vectors(rows); },
      [&](Prefetches& prefetches, int64_t first, int64_t rows) {
        multiply_groups_up_to<kBits, group_rows(kBits)>(block, weight, prefetches, first, rows);
      });
}

static void multiply_bytes(const Block& block, const Weight& weight) {
  if constexpr (kPairsPanels && GLIMPSE_DOTS)
    if (block.second_panel)
      return multiply_pair(block, [&](auto rows, Prefetches& prefetches, int64_t first) {
        multiply_groups<8, decltype(rows)::value, kPairedVectors>(block, weight, prefetches, first, 0);
      });
  if (is_int4(weight) && !block.unpacked) multiply_bits<4>(block, weight);
  else multiply_bits<8>(block, weight);
}

// Unpacks blocks of 4 lines, each with input 4 · i + j of a feature in a low nibble and input 16 + 4 · i + j in a high
// one, to 8 lines.
static void unpack_nibbles(const char* panel, int64_t num_lines, void* memory) {
  const i32v nibbles = splat(0x0f0f0f0f);
  char* unpacked = static_cast<char*>(memory);
  for (int64_t block = 0; block < num_lines; block += kBlockLines, unpacked += 2 * kBlockLines * kLineBytes)
    for (int64_t line = 0; line < kBlockLines; ++line)
      for (int v = 0; v < 2 * kTileVectors; ++v) {
        const i32v both = load<i32v>(panel + (block + line) * kLineBytes + v * (4 * kLanes));
        store(unpacked + line * kLineBytes + v * (4 * kLanes), both & nibbles);
        store(unpacked + (kBlockLines + line) * kLineBytes + v * (4 * kLanes), (both >> 4) & nibbles);
      }
}

// What unpacks panels of integers for many rows. Null: nothing does, as it takes no less time.
static Unpack integers_unpacker(const Weight& weight) {
  if (is_int4(weight)) return kLanes == 16 || kStoresSums ? unpack_nibbles : nullptr;
  if (kLanes == 4 || reads_bytes(weight)) return nullptr;
  return has_groups(weight) ? unpack_pairs<true> : unpack_pairs<false>;
}
