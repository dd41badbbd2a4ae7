// All layers of a Llama-shaped network in one call.
//
// Shapes: N tokens, E hidden size, X = (Q + 2 H) * D features of queries, keys and values, F features of the MLP.

#pragma once

#include "attention.h"
#include "linear.h"
#include "rms_norm.h"

#ifdef DRAY_HAS_LINEAR

namespace {

struct DecoderLayer {
  const void *attention_norm, *mlp_norm;  // [E]
  float attention_epsilon, mlp_epsilon;
  Linear qkv, out, up, down;  // `up` has the gate
  LayerCache cache;
};

// Replaces hidden [N, E] by the hidden states after the layers. Unless `is_wanted`, the last layer only writes its keys
// and values. `scratch` has room for N * (E + X + Q * D + F) numbers.
template <class T>
void run_layers(const Forward& f, const DecoderLayer* layers, int64_t num_layers, bool is_wanted, T* hidden, T* scratch) {
  const int64_t lines = f.num_tokens;
  for (int64_t i = 0; i < num_layers; ++i) {
    const DecoderLayer& layer = layers[i];
    const int64_t size = layer.qkv.inputs;
    T *normed = scratch, *qkv = normed + lines * size, *found = qkv + lines * layer.qkv.outputs;
    T* gated = found + lines * layer.out.inputs;
    const bool is_read = is_wanted || i + 1 < num_layers;

    rms_norm(hidden, static_cast<const T*>(layer.attention_norm), layer.attention_epsilon, lines, size, normed);
    run_linear<T>(layer.qkv, normed, lines, nullptr, qkv);
    attention<T>(f, layer.cache, qkv, is_read ? found : nullptr);
    if (!is_read) return;
    run_linear<T>(layer.out, found, lines, hidden, hidden);

    rms_norm(hidden, static_cast<const T*>(layer.mlp_norm), layer.mlp_epsilon, lines, size, normed);
    run_linear<T>(layer.up, normed, lines, nullptr, gated);
    run_linear<T>(layer.down, gated, lines, hidden, hidden);
  }
}

}  // namespace

#endif
