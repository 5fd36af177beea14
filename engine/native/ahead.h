// Fetching weights before they are needed. Included after vectors.h, in the same namespace.
#pragma once

// Processors fetch what follows by themselves, but only to the end of a page. The first lines of the next page are all
// that they need to be told: to ask for every line is slower by a tenth.
static inline void fetch_page(const char* weights) {
  constexpr uintptr_t kPageBytes = 4096;
  if ((uintptr_t)weights & (kPageBytes / 2)) return;  // a step is half a page
  auto page = (const char*)(((uintptr_t)weights & ~(kPageBytes - 1)) + kPageBytes);
  for (int line = 0; line < 4; ++line) __builtin_prefetch(page + line * 64, 0, 2);
}

// What a step of a block fetches.
static inline void fetch_ahead(const Block& block, int64_t step) {
  if (!block.ahead) return fetch_page(block.panel + step * kStepBytes);
  const char* lines = block.ahead + step * block.lines_ahead * 64;
  for (int64_t i = 0; i < block.lines_ahead; ++i) __builtin_prefetch(lines + i * 64);
}
