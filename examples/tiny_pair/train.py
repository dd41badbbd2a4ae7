"""Trains the bundled pair: a tokenizer, a Llama target, and a draft distilled from it.

    python -m examples.tiny_pair.train [--out DIR]

Shapes: B documents, T positions, N real (unpadded) positions, H hidden size, V vocabulary. Every document starts at
position 0, because that is where the models are used from: documents are padded, never packed.
"""

import argparse
import math
import random
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from torch.nn import functional as F
from transformers import GenerationConfig, LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from examples.tiny_pair.corpus import KINDS, Piece, chat_messages

VOCABULARY_SIZE = 3072
SPECIAL_TOKENS = ["<|endoftext|>", "<|system|>", "<|user|>", "<|assistant|>", "<|end|>"]
CHAT_TEMPLATE = (
    "{%- for message in messages -%}"
    "{%- if message['role'] not in ['system', 'user', 'assistant'] -%}"
    "{{ raise_exception('a role must be system, user or assistant; got ' + message['role']) }}"
    "{%- endif -%}"
    "{{ '<|' + message['role'] + '|>' + message['content'] + '<|end|>' }}"
    "{%- endfor -%}"
    "{%- if add_generation_prompt -%}{{ '<|assistant|>' }}{%- endif -%}"
)
CHAT_SHARE = 0.4
TOKENS_PER_BATCH = 2048
DOCUMENTS_PER_WINDOW = 256
TARGET_STEPS, TARGET_LEARNING_RATE = 2000, 3e-3
DRAFT_STEPS, DRAFT_LEARNING_RATE = 1800, 5e-3
CROSS_ENTROPY_SHARE = 0.1

Loss = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]


def pieces(rng: random.Random) -> Iterator[Piece]:
    """Yield texts of all kinds, equally often, without end."""
    while True:
        yield rng.choice(list(KINDS.values()))(rng)


def train_tokenizer(num_documents: int = 12_000) -> PreTrainedTokenizerFast:
    """Return a byte-level BPE tokenizer of 3072 tokens; digits stay single, nothing is added to a text."""
    rng = random.Random("tokenizer")
    texts = (f"{piece.request}\n{piece.text}" for _, piece in zip(range(num_documents), pieces(rng), strict=False))
    backend = Tokenizer(models.BPE())
    backend.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
    backend.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY_SIZE,
        special_tokens=SPECIAL_TOKENS,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    backend.train_from_iterator(texts, trainer)
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=backend,
        eos_token="<|endoftext|>",
        pad_token="<|endoftext|>",
        extra_special_tokens=SPECIAL_TOKENS[1:],
        clean_up_tokenization_spaces=False,
        model_max_length=512,
    )
    tokenizer.chat_template = CHAT_TEMPLATE
    if len(tokenizer) != VOCABULARY_SIZE:
        raise ValueError(f"the corpus gave {len(tokenizer)} tokens and {VOCABULARY_SIZE} were asked for; add words")
    return tokenizer


def document(piece: Piece, tokenizer: PreTrainedTokenizerFast, rng: random.Random) -> list[int]:
    """Return the token ids of the piece, in chat form for 40 % of them, with the end-of-text token last."""
    text = piece.text
    if rng.random() < CHAT_SHARE:
        messages = [*chat_messages(piece, rng), {"role": "assistant", "content": piece.text}]
        text = str(tokenizer.apply_chat_template(messages, tokenize=False))
    return [*tokenizer.encode(text, add_special_tokens=False), tokenizer.eos_token_id]


def batches(
    tokenizer: PreTrainedTokenizerFast, seed: str, num_batches: int
) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """Yield (ids_BT, is_real_BT), about 2048 positions each; documents of like length share a batch."""
    rng = random.Random(seed)
    source = pieces(rng)
    left = num_batches
    while left > 0:
        window = sorted((document(next(source), tokenizer, rng) for _ in range(DOCUMENTS_PER_WINDOW)), key=len)
        groups: list[list[list[int]]] = [[]]
        for ids in window:
            if (len(groups[-1]) + 1) * len(ids) > TOKENS_PER_BATCH:
                groups.append([])
            groups[-1].append(ids)
        rng.shuffle(groups)
        for group in groups[:left]:
            length = len(group[-1])
            ids_BT = torch.tensor([ids + [0] * (length - len(ids)) for ids in group])
            is_real_BT = torch.arange(length) < torch.tensor([[len(ids)] for ids in group])
            yield ids_BT, is_real_BT
        left -= len(groups)


def next_token_logits(model: LlamaForCausalLM, ids_BT: torch.Tensor, is_real_BT: torch.Tensor) -> torch.Tensor:
    """Return logits_NV for every real token but the first of each document; right padding needs no mask."""
    hidden_BTH = model.model(input_ids=ids_BT, use_cache=False).last_hidden_state
    logits_NV: torch.Tensor = model.lm_head(hidden_BTH[:, :-1][is_real_BT[:, 1:]])
    return logits_NV.float()


def new_model(seed: int, hidden: int, feed_forward: int, layers: int, heads: int, kv_heads: int) -> LlamaForCausalLM:
    """Return an untrained Llama of the given shape over the bundled vocabulary, 512 positions."""
    torch.manual_seed(seed)
    config = LlamaConfig(
        vocab_size=VOCABULARY_SIZE,
        hidden_size=hidden,
        intermediate_size=feed_forward,
        num_hidden_layers=layers,
        num_attention_heads=heads,
        num_key_value_heads=kv_heads,
        max_position_embeddings=512,
        tie_word_embeddings=True,
        bos_token_id=None,
        eos_token_id=SPECIAL_TOKENS.index("<|endoftext|>"),
        pad_token_id=SPECIAL_TOKENS.index("<|endoftext|>"),
    )
    return LlamaForCausalLM(config)


def optimize(
    model: LlamaForCausalLM,
    data: Iterator[tuple[torch.Tensor, torch.Tensor]],
    num_steps: int,
    learning_rate: float,
    loss_of: Loss,
) -> None:
    """Train the model in place with AdamW, a warm-up of 100 steps and a cosine to zero."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=learning_rate, betas=(0.9, 0.95), weight_decay=0.1, fused=True)
    schedule = torch.optim.lr_scheduler.LambdaLR(
        optimizer, lambda step: min((step + 1) / 100, 0.5 + 0.5 * math.cos(math.pi * step / num_steps))
    )
    started, recent = time.perf_counter(), 0.0
    for step, (ids_BT, is_real_BT) in enumerate(data, 1):
        loss = loss_of(ids_BT, is_real_BT)
        loss.backward()  # type: ignore[no-untyped-call]
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        schedule.step()
        recent += loss.item()
        if step % 200 == 0:
            print(f"  step {step}: loss {recent / 200:.4f}, {time.perf_counter() - started:.0f} s", flush=True)
            recent = 0.0


def train_target(tokenizer: PreTrainedTokenizerFast) -> LlamaForCausalLM:
    """Return the target: 3.3 M parameters, trained on the corpus with cross entropy."""
    model = new_model(seed=1, hidden=192, feed_forward=576, layers=6, heads=6, kv_heads=3)

    def cross_entropy(ids_BT: torch.Tensor, is_real_BT: torch.Tensor) -> torch.Tensor:
        with torch.autocast("cpu", torch.bfloat16):  # measured: a third less time per step at this width
            logits_NV = next_token_logits(model, ids_BT, is_real_BT)
        return F.cross_entropy(logits_NV, ids_BT[:, 1:][is_real_BT[:, 1:]])

    data = batches(tokenizer, "target", TARGET_STEPS)
    optimize(model, data, TARGET_STEPS, TARGET_LEARNING_RATE, cross_entropy)
    return model


def train_draft(
    tokenizer: PreTrainedTokenizerFast, target: LlamaForCausalLM, num_steps: int = DRAFT_STEPS
) -> LlamaForCausalLM:
    """Return the draft: a tenth of the target, taught by its distributions and a little by the text."""
    model = new_model(seed=2, hidden=64, feed_forward=192, layers=2, heads=2, kv_heads=1)

    def distillation(ids_BT: torch.Tensor, is_real_BT: torch.Tensor) -> torch.Tensor:
        with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
            target_log_probs_NV = next_token_logits(target, ids_BT, is_real_BT).log_softmax(-1)
        log_probs_NV = next_token_logits(model, ids_BT, is_real_BT).log_softmax(-1)
        divergence = F.kl_div(log_probs_NV, target_log_probs_NV, log_target=True, reduction="batchmean")
        cross_entropy = F.nll_loss(log_probs_NV, ids_BT[:, 1:][is_real_BT[:, 1:]])
        return (1 - CROSS_ENTROPY_SHARE) * divergence + CROSS_ENTROPY_SHARE * cross_entropy

    data = batches(tokenizer, "draft", num_steps)
    optimize(model, data, num_steps, DRAFT_LEARNING_RATE, distillation)
    return model


def save(model: LlamaForCausalLM, tokenizer: PreTrainedTokenizerFast, folder: Path) -> None:
    """Write the model in bfloat16, its tokenizer, and what ends a generation."""
    ends = [SPECIAL_TOKENS.index("<|endoftext|>"), SPECIAL_TOKENS.index("<|end|>")]
    model.generation_config = GenerationConfig(eos_token_id=ends, pad_token_id=ends[0])
    model.to(torch.bfloat16).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    num_parameters = sum(parameter.numel() for parameter in model.parameters())
    num_bytes = sum(file.stat().st_size for file in folder.iterdir())
    print(f"{folder}: {num_parameters:,} parameters, {num_bytes / 1e6:.2f} MB", flush=True)


def main() -> None:
    """Train and write both models under --out."""
    parser = argparse.ArgumentParser(description="Train the bundled pair.")
    parser.add_argument("--out", type=Path, default=Path(__file__).parent, help="folder for target/ and draft/")
    out: Path = parser.parse_args().out
    torch.set_num_threads(2)
    torch.use_deterministic_algorithms(True)
    started = time.perf_counter()
    tokenizer = train_tokenizer()
    print("target", flush=True)
    target = train_target(tokenizer)
    save(target, tokenizer, out / "target")
    print("draft", flush=True)
    draft = train_draft(tokenizer, target.float())
    save(draft, tokenizer, out / "draft")
    print(f"took {time.perf_counter() - started:.0f} s", flush=True)


if __name__ == "__main__":
    main()
