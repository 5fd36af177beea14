// Loops that keep one kind of arithmetic unit busy and do nothing else.
//
// They are written in assembly, so that every compiler makes the same loop. Twelve sums hide the latency of two
// instructions per cycle that take up to six cycles each. The caller checks that the processor has the instructions.
#include <cstdint>
#include <cstring>

#define SUMS "0,1,2,3,4,5,6,7,8,9,10,11"
#define VECTORS \
  "xmm0", "xmm1", "xmm2", "xmm3", "xmm4", "xmm5", "xmm6", "xmm7", "xmm8", "xmm9", "xmm10", "xmm11", "xmm14", "xmm15"

// Defines a function that runs `turns` times twelve instructions on registers of one width (ymm or zmm). Its operands
// are 64 bytes, in which no value is denormal in the instruction's type. `mov` loads them unaligned.
#define VECTOR_LOOP(name, width, mov, instruction)                                                                  \
  extern "C" void name(int64_t turns, const void* operands, int64_t) {                                              \
    __asm__ volatile(".irp sum," SUMS "\n vpxor %%xmm\\sum, %%xmm\\sum, %%xmm\\sum\n .endr\n" mov " (%1), %%" width \
                     "14\n" mov " (%1), %%" width                                                                   \
                     "15\n"                                                                                         \
                     "1:\n"                                                                                         \
                     ".irp sum," SUMS "\n " instruction " %%" width "14, %%" width "15, %%" width                   \
                     "\\sum\n .endr\n"                                                                              \
                     "dec %0\n"                                                                                     \
                     "jnz 1b\n"                                                                                     \
                     "vzeroupper\n"                                                                                 \
                     : "+r"(turns)                                                                                  \
                     : "r"(operands)                                                                                \
                     : "cc", "memory", VECTORS);                                                                    \
  }

// The same for int8 products without VNNI: three instructions for each sum. Register 13 holds factors of pairs of sums.
#define INT8_LOOP(name, width, mov)                                                                                   \
  extern "C" void name(int64_t turns, const void* operands, int64_t) {                                                \
    __asm__ volatile(".irp sum," SUMS "\n vpxor %%xmm\\sum, %%xmm\\sum, %%xmm\\sum\n .endr\n" mov " (%1), %%" width   \
                     "13\n" mov " (%1), %%" width "14\n" mov " (%1), %%" width                                        \
                     "15\n"                                                                                           \
                     "1:\n"                                                                                           \
                     ".irp sum," SUMS "\n vpmaddubsw %%" width "14, %%" width "15, %%" width "12\n vpmaddwd %%" width \
                     "13, %%" width "12, %%" width "12\n vpaddd %%" width "12, %%" width "\\sum, %%" width            \
                     "\\sum\n .endr\n"                                                                                \
                     "dec %0\n"                                                                                       \
                     "jnz 1b\n"                                                                                       \
                     "vzeroupper\n"                                                                                   \
                     : "+r"(turns)                                                                                    \
                     : "r"(operands)                                                                                  \
                     : "cc", "memory", VECTORS, "xmm12", "xmm13");                                                    \
  }

VECTOR_LOOP(units_fma_256, "ymm", "vmovups", "vfmadd231ps")
VECTOR_LOOP(units_fma_512, "zmm", "vmovups", "vfmadd231ps")
VECTOR_LOOP(units_bf16_512, "zmm", "vmovups", "vdpbf16ps")
INT8_LOOP(units_int8_256, "ymm", "vmovups")
INT8_LOOP(units_int8_512, "zmm", "vmovups")
VECTOR_LOOP(units_vnni_256, "ymm", "vmovups", "%{vex%} vpdpbusd")
VECTOR_LOOP(units_vnni_512, "zmm", "vmovups", "vpdpbusd")

namespace {

struct TileShapes {  // the operand of LDTILECFG
  uint8_t palette = 1, start_row = 0, reserved[14] = {};
  uint16_t row_bytes[16] = {};
  uint8_t rows[16] = {};
};

}  // namespace

// Defines a function that multiplies 2 · 2 tiles `turns` times, each with four tiles read in turn from `bytes` of
// operands, a multiple of 4 KiB: the size decides which cache they come from.
#define TILE_LOOP(name, instruction)                                                            \
  extern "C" void name(int64_t turns, const void* operands, int64_t bytes) {                    \
    TileShapes shapes;                                                                          \
    for (int tile = 0; tile < 8; ++tile) {                                                      \
      shapes.row_bytes[tile] = 64;                                                              \
      shapes.rows[tile] = 16;                                                                   \
    }                                                                                           \
    const char* begin = static_cast<const char*>(operands);                                     \
    const char* at = begin;                                                                     \
    __asm__ volatile(                                                                           \
        "ldtilecfg %[shapes]\n"                                                                 \
        "tilezero %%tmm0\n tilezero %%tmm1\n tilezero %%tmm2\n tilezero %%tmm3\n"               \
        "1:\n"                                                                                  \
        "tileloadd (%[at],%[stride],1), %%tmm4\n"                                               \
        "tileloadd 1024(%[at],%[stride],1), %%tmm6\n"                                           \
        "" instruction                                                                          \
        " %%tmm6, %%tmm4, %%tmm0\n"                                                             \
        "tileloadd 2048(%[at],%[stride],1), %%tmm7\n"                                           \
        "" instruction                                                                          \
        " %%tmm7, %%tmm4, %%tmm1\n"                                                             \
        "tileloadd 3072(%[at],%[stride],1), %%tmm5\n"                                           \
        "" instruction                                                                          \
        " %%tmm6, %%tmm5, %%tmm2\n"                                                             \
        "" instruction                                                                          \
        " %%tmm7, %%tmm5, %%tmm3\n"                                                             \
        "add $4096, %[at]\n"                                                                    \
        "cmp %[end], %[at]\n"                                                                   \
        "cmovae %[begin], %[at]\n"                                                              \
        "dec %[turns]\n"                                                                        \
        "jnz 1b\n"                                                                              \
        "tilerelease\n"                                                                         \
        : [turns] "+&r"(turns), [at] "+&r"(at)                                                  \
        : [begin] "r"(begin), [end] "r"(begin + bytes), [stride] "r"(64L), [shapes] "m"(shapes) \
        : "cc", "memory");                                                                      \
  }

TILE_LOOP(units_amx_bf16, "tdpbf16ps")
TILE_LOOP(units_amx_int8, "tdpbusd")
