"""A tiny random target and draft with a tokenizer, saved to a folder, so that tests run the real load path."""

from pathlib import Path

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

CHAT_TEMPLATE = (
    "{% for message in messages %}<{{ message.role }}>{{ message.content }}\n{% endfor %}"
    "{% if add_generation_prompt %}<assistant>{% endif %}"
)
WORDS = "hello world, a small text for a tokenizer. one two three\n"


def save_text_pair(folder: Path) -> tuple[str, str]:
    """Save a target, and as its draft a noised copy, which guesses well; return the paths of both."""
    tokenizer = save_tokenizer(folder / "target")
    target = LlamaForCausalLM(_config(len(tokenizer)))
    generator = torch.Generator().manual_seed(0)
    for weight in target.parameters():
        if weight.dim() > 1:
            weight.data = torch.randn(weight.shape, generator=generator) * 0.1
    target.save_pretrained(folder / "target")
    for weight in target.parameters():
        weight.data += torch.randn(weight.shape, generator=generator) * 0.02
    target.save_pretrained(folder / "draft")
    tokenizer.save_pretrained(folder / "draft")
    return str(folder / "target"), str(folder / "draft")


def save_tokenizer(folder: Path) -> PreTrainedTokenizerFast:
    """Save and return a byte-level tokenizer that knows every text."""
    core = Tokenizer(models.BPE())
    core.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    core.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=300, special_tokens=["<|end|>"], initial_alphabet=alphabet)
    core.train_from_iterator([WORDS] * 4, trainer)
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=core, eos_token="<|end|>")
    tokenizer.chat_template = CHAT_TEMPLATE
    tokenizer.save_pretrained(folder)
    return tokenizer


def save_byte_fallback_tokenizer(folder: Path) -> PreTrainedTokenizerFast:
    """Save and return a tokenizer like Llama 2's: "▁" for spaces, the first one dropped, and bytes as a fallback."""
    words = ["▁", "▁the", "▁cat", "s", "a", "b", "c", "th", "e", "▁st", "op", "<eos>"]
    vocabulary = {word: index for index, word in enumerate(["<unk>", *words])}
    vocabulary |= {f"<0x{byte:02X}>": len(vocabulary) + byte for byte in range(256)}
    core = Tokenizer(models.BPE(vocabulary, [], unk_token="<unk>", byte_fallback=True))
    core.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=core, unk_token="<unk>", eos_token="<eos>")
    tokenizer.save_pretrained(folder)
    return tokenizer


def _config(vocab_size: int) -> LlamaConfig:
    return LlamaConfig(
        vocab_size=vocab_size,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=256,
        bos_token_id=0,
        eos_token_id=0,
    )
