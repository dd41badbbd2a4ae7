// All layers of a decoder in one call. What differs from family to family is data of its layers.
//
// Shapes: N tokens, E hidden size, X = (Q + 2 H) * D features of queries, keys and values, F features of the MLP.

#pragma once

#include "attention.h"
#include "linear.h"
#include "rms_norm.h"

#ifdef DRAY_HAS_LINEAR

namespace {

struct DecoderLayer {
  Norm attention_norm, mlp_norm;         // of what attention and MLP read
  Norm after_attention, after_mlp;       // of what they give, before it is added
  Linear qkv, out, up, down;             // `up` has the gate
  LayerCache cache;
  int64_t is_parallel;                   // whether the MLP reads what the attention reads
};

// hidden += what a layer's last product gives, normalized if there is a norm of it.
template <class T>
void add_product(const Linear& linear, const Norm& after, const T* x, int64_t lines, T* room, T* hidden) {
  run_linear<T>(linear, x, lines, after.weight ? nullptr : hidden, after.weight ? room : hidden);
  if (after.weight) rms_norm(after, room, lines, linear.outputs, hidden, hidden);
}

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

    const auto read = [&](const Norm& norm) -> const T* {
      if (!norm.weight) return hidden;
      rms_norm<T>(norm, hidden, lines, size, nullptr, normed);
      return normed;
    };
    const T* in = read(layer.attention_norm);
    run_linear<T>(layer.qkv, in, lines, nullptr, qkv);
    attention<T>(f, layer.cache, qkv, is_read ? found : nullptr);
    if (!is_read) return;
    if (layer.is_parallel) run_linear<T>(layer.up, in, lines, nullptr, gated);
    add_product<T>(layer.out, layer.after_attention, found, lines, normed, hidden);
    if (!layer.is_parallel) run_linear<T>(layer.up, read(layer.mlp_norm), lines, nullptr, gated);
    add_product<T>(layer.down, layer.after_mlp, gated, lines, normed, hidden);
  }
}

}  // namespace

#endif
