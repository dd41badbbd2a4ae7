// The CPU kernels as plain C functions: the layers of a decoder, the picks of tokens and what they say of a draft, each in
// a call or two, and how a thread waits for another one.
//
// No torch headers are included, so it compiles in seconds, with any compiler that knows GCC's vector extensions. The
// products of linear.h exist only if the processor has AVX2 with FMA, or AVX-512.

#include "attention.h"
#include "convolution.h"
#include "decoder.h"
#include "picks.h"
#include "recurrence.h"
#include "verify.h"
#include "wait.h"

extern "C" {

void dray_attention_float32(const Forward* f, const LayerCache* layer, float* qkv, float* out) {
  attention(*f, *layer, qkv, out);
}

void dray_attention_bfloat16(const Forward* f, const LayerCache* layer, BFloat16* qkv, BFloat16* out) {
  attention(*f, *layer, qkv, out);
}

void dray_rms_norm_float32(const Norm* norm, const float* x, int64_t rows, int64_t size, float* out) {
  rms_norm<float>(*norm, x, rows, size, nullptr, out);
}

void dray_rms_norm_bfloat16(const Norm* norm, const BFloat16* x, int64_t rows, int64_t size, BFloat16* out) {
  rms_norm<BFloat16>(*norm, x, rows, size, nullptr, out);
}

void dray_softcap_float32(float* x, int64_t num, float cap) { cap_all(x, num, cap); }

void dray_softcap_bfloat16(BFloat16* x, int64_t num, float cap) { cap_all(x, num, cap); }

int64_t dray_begin_picks_float32(const PickInputs* in, const PickOutputs* out) { return begin_picks<float>(*in, *out); }

int64_t dray_begin_picks_bfloat16(const PickInputs* in, const PickOutputs* out) {
  return begin_picks<BFloat16>(*in, *out);
}

void dray_finish_picks(const PickOutputs* out, int64_t num_places, const float* noised) {
  finish_picks(*out, num_places, noised);
}

void dray_verify_coupled(const VerifyInputs* in, const VerifyOutputs* out) { verify_coupled(*in, *out); }

void dray_convolve_float32(const Convolution* c, const float* x, float* windows, float* out) {
  convolve(*c, x, windows, out);
}

void dray_convolve_bfloat16(const Convolution* c, const BFloat16* x, BFloat16* windows, BFloat16* out) {
  convolve(*c, x, windows, out);
}

void dray_recur(const Recurrence* r, float* out) { recur(*r, out); }

bool dray_wait_for_change(const int64_t* number, int64_t seen, int64_t sleep_ns, int64_t look_ns) {
  return wait_for_change(number, seen, sleep_ns, look_ns);
}

int64_t dray_num_candidates() { return kCandidates; }

#ifdef DRAY_HAS_LINEAR

int64_t dray_linear_columns() { return kColumns; }

const char* dray_linear_kind_float32() { return DRAY_LINEAR_KIND_FLOAT32; }

const char* dray_linear_kind_bfloat16() { return DRAY_LINEAR_KIND_BFLOAT16; }

int64_t dray_has_tiles(int64_t form) { return has_tiles(form); }

void dray_linear_float32(const Linear* linear, const float* x, int64_t lines, const float* added, float* out) {
  run_linear(*linear, x, lines, added, out);
}

bool dray_read_lines(const Linear* linear, const int64_t* lines, int64_t num, int64_t size, void* out) {
  return read_lines(*linear, lines, num, size, out);
}

void dray_linear_bfloat16(const Linear* linear, const BFloat16* x, int64_t lines, const BFloat16* added,
                          BFloat16* out) {
  run_linear(*linear, x, lines, added, out);
}

void dray_layers_float32(const Forward* f, const DecoderLayer* layers, int64_t num_layers, bool is_wanted, float* hidden,
                         float* scratch) {
  run_layers(*f, layers, num_layers, is_wanted, hidden, scratch);
}

void dray_layers_bfloat16(const Forward* f, const DecoderLayer* layers, int64_t num_layers, bool is_wanted,
                          BFloat16* hidden, BFloat16* scratch) {
  run_layers(*f, layers, num_layers, is_wanted, hidden, scratch);
}

#endif
}
