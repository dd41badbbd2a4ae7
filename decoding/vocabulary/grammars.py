"""The grammars of a target's vocabulary, whose tokenizer is read when the first of them is needed."""

from decoding.grammar.grammars import Grammars
from decoding.grammar.token_table import TokenTable
from decoding.vocabulary.vocabulary_map import load_tokenizer


def grammars_of(tokenizer: str, vocab_size: int, eos_token_ids: frozenset[int]) -> Grammars:
    """Return what compiles grammars for a target with this tokenizer, a folder or hub name, which is read when needed.

    A tokenizer that cannot be used is a problem of the sequences with a grammar, not of the engine.
    """
    return Grammars(lambda: TokenTable.of_tokenizer(load_tokenizer(tokenizer), vocab_size, eos_token_ids))
