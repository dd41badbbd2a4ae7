"""Small tokenizers whose tokens are known, and drafts that have them."""

import copy
import string
from collections.abc import Sequence as Seq

import torch
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, processors
from transformers import PreTrainedModel, PreTrainedTokenizerFast

from decoding.vocabulary.vocabulary_map import VocabularyMap

BYTES = sorted(pre_tokenizers.ByteLevel.alphabet())
LETTERS = string.ascii_lowercase + string.digits + ".,;-"  # 40


def byte_level(tokens: Seq[str], **special: str) -> PreTrainedTokenizerFast:
    """A tokenizer like GPT-2's with these tokens, in the order of their ids; longer ones are made of single letters."""
    vocabulary = {token: token_id for token_id, token in enumerate(tokens)}
    core = Tokenizer(models.BPE(vocabulary, _merges([token for token in tokens if token not in special.values()])))
    core.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    core.decoder = decoders.ByteLevel()
    return PreTrainedTokenizerFast(tokenizer_object=core, **special)


def like_llama_2(tokens: Seq[str]) -> PreTrainedTokenizerFast:
    """A tokenizer like Llama 2's: a space in front of each text, "▁" for spaces, single bytes, and a first token."""
    names = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256)), *tokens]
    vocabulary = {token: token_id for token_id, token in enumerate(names)}
    core = Tokenizer(models.BPE(vocabulary, _merges(tokens), unk_token="<unk>", byte_fallback=True, fuse_unk=True))
    core.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    core.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=core, unk_token="<unk>", bos_token="<s>", eos_token="</s>", model_max_length=4096
    )
    tokenizer.backend_tokenizer.post_processor = processors.TemplateProcessing("<s> $A", special_tokens=[("<s>", 1)])
    return tokenizer


def _merges(tokens: Seq[str]) -> list[tuple[str, str]]:
    """Return two parts for each longer token; a token without them is never written."""
    known, found = set(tokens), []
    for token in tokens:
        splits = [(token[:end], token[end:]) for end in range(len(token) - 1, 0, -1)]
        found += [split for split in splits if known.issuperset(split)][:1]
    return found


def map_of(target: PreTrainedTokenizerFast, draft: PreTrainedTokenizerFast) -> VocabularyMap:
    """The map between them, for models that have as many ids as their tokenizers."""
    return VocabularyMap(target, draft, len(target), len(draft), ("the target", "the draft"))


def other_tokens() -> tuple[list[str], list[str]]:
    """48 tokens of a target and as many of a draft, of which 40 are the same with other ids."""
    own = [*LETTERS, "ab", "cd", "ef", "12", "gh", "ij", "kl", "mn"]
    others = [*reversed(LETTERS), "ba", "dc", "e.", "34", "x1", "yz", "op", "abc"[:2] + "c"]
    others[-1] = "bac"  # made of "ba"
    return own, others


def nearly_the_same(vocab_size: int) -> VocabularyMap:
    """The map between two tokenizers of `vocab_size` tokens, of which the last 8 differ if there are more than 24.

    Common tokens have the same ids, so the draft may be any model of the target's vocabulary.
    """
    num_others = 8 if vocab_size > 24 else 0
    letters = [character for character in BYTES if character.isalnum()][: vocab_size - num_others]
    own, others = ([letters[k] + letters[k + shift] for k in range(num_others)] for shift in (1, 2))
    return map_of(byte_level([*letters, *own]), byte_level([*letters, *others]))


@torch.no_grad()
def permuted(network: PreTrainedModel, ids: Seq[int]) -> PreTrainedModel:
    """The same model, in which id i stands for what ids[i] stood for."""
    other = copy.deepcopy(network)
    for old, new in (
        (network.get_input_embeddings(), other.get_input_embeddings()),
        (network.get_output_embeddings(), other.get_output_embeddings()),
    ):
        new.weight.copy_(old.weight[list(ids)])
    return other
