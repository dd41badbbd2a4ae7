// The tile unit of a processor with AMX, and the same unit written out in C, on which the products of tiles.h run where
// there is none.
//
// A tile is 16 rows of 64 bytes. TDPBF16PS adds to a tile C [16, 16] of float32 the product of A [16, 32] and B [32, 16]
// in bfloat16, where row k of B has the inputs 2 k and 2 k + 1 of all columns in pairs. Its order is that of Intel's
// Software Developer's Manual, volume 2, "TDPBF16PS" (the intrinsics guide leaves the two temporaries out):
//
//   even = odd = 0
//   for k in 0 ... 15:                            FMA in float32
//     even += A[2 k] * B[2 k];  odd += A[2 k + 1] * B[2 k + 1]
//   C += even + odd
//
// Each step is rounded to nearest even once, denormal inputs count as zero and denormal results become zero, whatever
// MXCSR says.

#pragma once

#include "codes.h"

#ifdef DRAY_HAS_LINEAR
#include <cstring>
#if defined(__AMX_BF16__) && defined(__linux__)
#define DRAY_HAS_AMX
#include <sys/syscall.h>
#include <unistd.h>
#endif

namespace {

constexpr int kTileRows = 16;
constexpr int kTileBytes = 64;  // of a row
constexpr int kTile = kTileRows * kTileBytes;
constexpr int kNumTiles = 8;

// What LDTILECFG reads: all eight tiles are whole.
struct alignas(64) TileConfig {
  uint8_t palette = 1, start_row = 0, reserved[14] = {};
  uint16_t bytes[16] = {64, 64, 64, 64, 64, 64, 64, 64};
  uint8_t rows[16] = {16, 16, 16, 16, 16, 16, 16, 16};
};
static_assert(sizeof(TileConfig) == 64, "the size that the instruction reads");

// Vector instructions of this thread treat denormals as the tile unit does, and round as it does, while this lives.
class Flushing {
 public:
  Flushing() : before_(_mm_getcsr()) { _mm_setcsr(0x9fc0); }  // FTZ, DAZ, no exceptions, to nearest even
  ~Flushing() { _mm_setcsr(before_); }
  Flushing(const Flushing&) = delete;

 private:
  const unsigned before_;
};

#ifdef DRAY_HAS_AMX
struct Amx {
  // Asks the system for the tiles of this process; tells whether it may use them.
  static bool is_permitted() {
    constexpr long request_permission = 0x1023, tile_data = 18;  // ARCH_REQ_XCOMP_PERM of asm/prctl.h, XFEATURE_XTILEDATA
    return syscall(SYS_arch_prctl, request_permission, tile_data) == 0;
  }
  static void configure(const TileConfig& config) { asm volatile("ldtilecfg %0" ::"m"(config)); }
  static void release() { asm volatile("tilerelease"); }
  template <int tile>
  static void zero() {
    asm volatile("tilezero %%tmm%c0" ::"i"(tile));
  }
  template <int tile>
  static void load(const void* from, int64_t stride) {
    asm volatile("tileloadd (%0,%1,1), %%tmm%c2" ::"r"(from), "r"(stride), "i"(tile) : "memory");
  }
  template <int tile>
  static void store(void* to, int64_t stride) {
    asm volatile("tilestored %%tmm%c2, (%0,%1,1)" ::"r"(to), "r"(stride), "i"(tile) : "memory");
  }
  template <int c, int a, int b>
  static void multiply() {
    asm volatile("tdpbf16ps %%tmm%c2, %%tmm%c1, %%tmm%c0" ::"i"(c), "i"(a), "i"(b));
  }
};
#endif

// The same in C. A thread that has not configured its tiles stops, as it would on the processor; one that has not released
// them stops when it configures them again.
class Emulated {
 public:
  static void configure(const TileConfig& config) {
    if (is_configured() || std::memcmp(&config, &kWhole, sizeof config) != 0) __builtin_trap();  // no other shapes here
    std::memset(tiles(), 0, kNumTiles * kTile);
    is_configured() = true;
  }
  static void release() { is_configured() = false; }
  template <int tile>
  static void zero() {
    std::memset(row(tile, 0), 0, kTile);
  }
  template <int tile>
  static void load(const void* from, int64_t stride) {
    copy(row(tile, 0), kTileBytes, from, stride);
  }
  template <int tile>
  static void store(void* to, int64_t stride) {
    copy(to, stride, row(tile, 0), kTileBytes);
  }
  template <int c, int a, int b>
  static void multiply() {
    const Flushing flushing;
    tdpbf16ps(reinterpret_cast<float*>(row(c, 0)), reinterpret_cast<const uint32_t*>(row(a, 0)),
              reinterpret_cast<const uint32_t*>(row(b, 0)));
  }

 private:
  static constexpr TileConfig kWhole = {};
  __attribute__((noinline)) static void copy(void* to, int64_t to_stride, const void* from, int64_t stride) {
    for (int r = 0; r < kTileRows; ++r)
      std::memcpy(static_cast<char*>(to) + r * to_stride, static_cast<const char*>(from) + r * stride, kTileBytes);
  }
  static char* tiles() {
    alignas(64) thread_local char bytes[kNumTiles * kTile];
    return bytes;
  }
  static bool& is_configured() {
    thread_local bool is = false;
    return is;
  }
  static char* row(int tile, int r) {
    if (!is_configured()) __builtin_trap();
    return tiles() + tile * kTile + r * kTileBytes;
  }
  static float number(uint32_t bits) {
    float x;
    std::memcpy(&x, &bits, sizeof x);
    return x;
  }
  // Not inlined, since the compiler may move arithmetic across a change of MXCSR.
  __attribute__((noinline)) static void tdpbf16ps(float* c, const uint32_t* a, const uint32_t* b) {
    constexpr int columns = kTileBytes / 4;
    for (int m = 0; m < kTileRows; ++m) {
      float even[columns] = {}, odd[columns] = {};
      for (int k = 0; k < kTileRows; ++k) {
        const uint32_t pair = a[m * columns + k];
        for (int n = 0; n < columns; ++n) {
          const uint32_t other = b[k * columns + n];
          even[n] = __builtin_fmaf(number(pair << 16), number(other << 16), even[n]);
          odd[n] = __builtin_fmaf(number(pair & 0xffff0000), number(other & 0xffff0000), odd[n]);
        }
      }
      for (int n = 0; n < columns; ++n) c[m * columns + n] = c[m * columns + n] + (even[n] + odd[n]);
    }
  }
};

}  // namespace

#endif
