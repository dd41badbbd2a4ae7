"""Trains the bundled head: an EAGLE-3 head for the bundled target, in the speculators format.

    python -m examples.tiny_pair.train_head [--out DIR]

Shapes: B documents, T tokens of each, N real tokens, X features of a token, D vocabulary of the head.
"""

import argparse
import time
from collections import Counter
from pathlib import Path

import torch
from torch.nn import functional as F
from transformers import AutoModelForCausalLM, AutoTokenizer, LlamaForCausalLM

from decoding.heads.format.folder import Head, save_head
from decoding.heads.format.head_config import HeadConfig, normalized
from decoding.heads.format.networks import Eagle3Network
from decoding.heads.format.tensors import offsets
from decoding.heads.unrolled import unrolled
from examples.tiny_pair.train import batches, optimize

HERE = Path(__file__).parent
LAYER_IDS = (1, 3, 5)  # what enters these layers of the target is read
NUM_TOKENS = 1024  # of the target's 3072, the most frequent ones
NUM_STEPS_AHEAD = 4
COUNTED_BATCHES, TRAINING_STEPS, LEARNING_RATE = 100, 1600, 4e-3


def head_config(target: LlamaForCausalLM) -> HeadConfig:
    """Return a head of one layer of the target's own sizes, with the norms of EAGLE 3.1."""
    config = target.config
    layer = {
        "model_type": "llama",
        "vocab_size": config.vocab_size,
        "hidden_size": config.hidden_size,
        "intermediate_size": config.intermediate_size,
        "num_hidden_layers": 1,
        "num_attention_heads": config.num_attention_heads,
        "num_key_value_heads": config.num_key_value_heads,
        "head_dim": config.hidden_size // config.num_attention_heads,
        "rms_norm_eps": config.rms_norm_eps,
        "max_position_embeddings": config.max_position_embeddings,
        "dtype": "bfloat16",
    }
    return HeadConfig(
        kind="eagle3",
        format="speculators",
        layer_config=normalized(layer),
        draft_vocab_size=NUM_TOKENS,
        target_hidden_size=config.hidden_size,
        layer_ids=LAYER_IDS,
        layer_ids_are="inputs",
        num_speculative_tokens=NUM_STEPS_AHEAD,
        target_name="examples/tiny_pair/target",
        target_architectures=("LlamaForCausalLM",),
        norm_before_residual=True,
        norm_before_fc=True,
        norm_output=True,
    )


def frequent_tokens(tokenizer: AutoTokenizer, vocab_size: int) -> torch.Tensor:
    """Return the ids of the most frequent tokens, ascending."""
    counts: Counter[int] = Counter()
    for ids_BT, is_real_BT in batches(tokenizer, "counts", COUNTED_BATCHES):
        counts.update(ids_BT[is_real_BT].tolist())
    ranked = sorted(range(vocab_size), key=lambda token: (-counts[token], token))
    chosen = ranked[:NUM_TOKENS]
    share = sum(counts[token] for token in chosen) / counts.total()
    print(f"{NUM_TOKENS} tokens are {share:.1%} of the text", flush=True)
    return torch.tensor(sorted(chosen))


def train(target: LlamaForCausalLM, tokenizer: AutoTokenizer, ids_D: torch.Tensor) -> Eagle3Network:
    """Return the head, taught by the target's distributions over its tokens."""
    torch.manual_seed(3)
    network = Eagle3Network(head_config(target))
    with torch.no_grad():
        network.embed_tokens.weight.copy_(target.get_input_embeddings().weight)
        network.lm_head.weight.copy_(target.get_output_embeddings().weight[ids_D])
    network.embed_tokens.requires_grad_(False)

    def divergence(ids_BT: torch.Tensor, is_real_BT: torch.Tensor) -> torch.Tensor:
        with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
            out = target(input_ids=ids_BT, use_cache=False, output_hidden_states=True)
            features_BTX = torch.cat([out.hidden_states[layer] for layer in LAYER_IDS], dim=-1)
            taught_BTD = out.logits[..., ids_D].float().log_softmax(-1)
        loss = torch.zeros(())
        for step, logits_BPD in enumerate(unrolled(network, ids_BT, features_BTX.float(), NUM_STEPS_AHEAD)):
            # The logits at place p are for token p + 2 + step, as the target's are behind token p + 1 + step.
            is_taught_BP = is_real_BT[:, 1 + step :].clone()
            is_taught_BP[:, :-1] &= is_real_BT[:, 2 + step :]
            is_taught_BP[:, -1] = False
            taught_ND = taught_BTD[:, 1 + step :][is_taught_BP]
            found_ND = logits_BPD[is_taught_BP].float().log_softmax(-1)
            loss = loss + F.kl_div(found_ND, taught_ND, log_target=True, reduction="batchmean")
        return loss / NUM_STEPS_AHEAD

    optimize(network, batches(tokenizer, "head", TRAINING_STEPS), TRAINING_STEPS, LEARNING_RATE, divergence)
    return network


def main() -> None:
    """Train and write the head under --out."""
    parser = argparse.ArgumentParser(description="Train the bundled head.")
    parser.add_argument("--out", type=Path, default=HERE / "head", help="a new folder for the head")
    out: Path = parser.parse_args().out
    torch.set_num_threads(2)
    torch.use_deterministic_algorithms(True)
    started = time.perf_counter()
    target = AutoModelForCausalLM.from_pretrained(HERE / "target", dtype=torch.float32).eval()
    tokenizer = AutoTokenizer.from_pretrained(HERE / "target")
    ids_D = frequent_tokens(tokenizer, target.config.vocab_size)
    network = train(target, tokenizer, ids_D)
    tensors = {name: weight.detach().bfloat16() for name, weight in network.named_parameters()}
    del tensors["embed_tokens.weight"]  # the target's
    save_head(Head(network.config, {**tensors, "d2t": offsets(ids_D)}), str(out), "speculators")
    num_bytes = sum(file.stat().st_size for file in out.iterdir())
    num_parameters = sum(tensor.numel() for tensor in tensors.values())
    print(f"{out}: {num_parameters:,} parameters, {num_bytes / 1e6:.2f} MB, {time.perf_counter() - started:.0f} s")


if __name__ == "__main__":
    main()
