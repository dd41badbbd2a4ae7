// Runs the instructions of AMX that a program has on a processor without them: each raises SIGILL, and the handler does
// what Intel's manual says. To be preloaded; the system's permission for tiles is given, too.
//
// With ADDS_OTHERWISE in the environment the odd inputs are added to the sum of the even ones, as no manual says.
//
// All tiles are 16 rows of 64 bytes, and anything else ends the program.

#define _GNU_SOURCE
#include <dlfcn.h>
#include <immintrin.h>
#include <signal.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <ucontext.h>

static __thread uint8_t tiles[8][1024];
static __thread int is_configured;
static const int registers[16] = {REG_RAX, REG_RCX, REG_RDX, REG_RBX, REG_RSP, REG_RBP, REG_RSI, REG_RDI,
                                  REG_R8,  REG_R9,  REG_R10, REG_R11, REG_R12, REG_R13, REG_R14, REG_R15};

static void expect(int is_so) {
  if (!is_so) abort();
}

static float number(uint32_t bits) {
  float x;
  memcpy(&x, &bits, sizeof x);
  return x;
}

__attribute__((noinline)) static void tdpbf16ps(float* c, const uint32_t* a, const uint32_t* b) {
  const int is_other = getenv("ADDS_OTHERWISE") != NULL;
  for (int m = 0; m < 16; ++m)
    for (int n = 0; n < 16; ++n) {
      float even = 0, odd = 0;
      for (int k = 0; k < 16; ++k) {
        even = __builtin_fmaf(number(a[16 * m + k] << 16), number(b[16 * k + n] << 16), even);
        float* const sum = is_other ? &even : &odd;
        *sum = __builtin_fmaf(number(a[16 * m + k] & 0xffff0000), number(b[16 * k + n] & 0xffff0000), *sum);
      }
      c[16 * m + n] += even + odd;
    }
}

static void configure(const uint8_t* config) {
  uint8_t whole[64] = {1};
  for (int tile = 0; tile < 8; ++tile) whole[16 + 2 * tile] = 64, whole[48 + tile] = 16;
  expect(!is_configured && memcmp(config, whole, 64) == 0);
  memset(tiles, 0xff, sizeof tiles);  // zeros on the processor: nothing may rely on them
  is_configured = 1;
}

// A VEX prefix of three bytes, opcode, ModRM, and where an address is read SIB and displacement.
static void run_instruction(int signal, siginfo_t* info, void* context) {
  (void)signal, (void)info;
  greg_t* at = ((ucontext_t*)context)->uc_mcontext.gregs;
  const uint8_t* code = (const uint8_t*)at[REG_RIP];
  expect(code[0] == 0xc4 && (code[1] & 0x1f) == 2 && (code[2] & 0x84) == 0);
  const int what = code[3] << 8 | (code[2] & 3), high_index = ~code[1] >> 3 & 8, high_base = ~code[1] >> 2 & 8;
  const int third = ~code[2] >> 3 & 15, mod = code[4] >> 6, reg = code[4] >> 3 & 7, rm = code[4] & 7;
  int length = 5;
  int64_t address = 0, stride = 0;
  if (mod != 3) {
    expect(mod != 0 || (rm != 5 && !(rm == 4 && (code[5] & 7) == 5)));  // no address without a base
    if (rm == 4) {
      const int index = (code[5] >> 3 & 7) | high_index;
      address = at[registers[(code[5] & 7) | high_base]];
      if (index != 4) stride = at[registers[index]] << (code[5] >> 6);
      ++length;
    } else {
      address = at[registers[rm | high_base]];
    }
    int32_t far = 0;
    if (mod == 1) far = (int8_t)code[length++];
    if (mod == 2) memcpy(&far, code + length, 4), length += 4;
    address += far;
  }
  uint8_t* memory = (uint8_t*)address;
  if (what == 0x4900 && mod != 3) {  // LDTILECFG
    configure(memory);
  } else if (what == 0x4900) {  // TILERELEASE
    is_configured = 0;
  } else {
    expect(is_configured);
    if (what == 0x4903) {  // TILEZERO
      memset(tiles[reg], 0, sizeof tiles[reg]);
    } else if (what == 0x4b03 && rm == 4) {  // TILELOADD
      for (int row = 0; row < 16; ++row) memcpy(tiles[reg] + 64 * row, memory + row * stride, 64);
    } else if (what == 0x4b02 && rm == 4) {  // TILESTORED
      for (int row = 0; row < 16; ++row) memcpy(memory + row * stride, tiles[reg] + 64 * row, 64);
    } else {
      expect(what == 0x5c02 && mod == 3);  // TDPBF16PS
      _mm_setcsr(0x9fc0);                  // the system restores the program's
      tdpbf16ps((float*)tiles[reg], (const uint32_t*)tiles[rm], (const uint32_t*)tiles[third]);
    }
  }
  at[REG_RIP] += length;
}

__attribute__((constructor)) static void begin(void) {
  struct sigaction action = {.sa_sigaction = run_instruction, .sa_flags = SA_SIGINFO};
  sigaction(SIGILL, &action, NULL);
}

long syscall(long number, ...) {
  long given[6];
  va_list rest;
  va_start(rest, number);
  for (int i = 0; i < 6; ++i) given[i] = va_arg(rest, long);
  va_end(rest);
  if (number == SYS_arch_prctl && given[0] == 0x1023) return 0;
  long (*const real)(long, ...) = (long (*)(long, ...))dlsym(RTLD_NEXT, "syscall");
  return real(number, given[0], given[1], given[2], given[3], given[4], given[5]);
}
