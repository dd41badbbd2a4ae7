"""Corpus: the rows that every configuration generates, the same for all of them.

- random: prompts of random tokens and lengths.
- text: prompts of a file, encoded by the pair's own tokenizer.
- templated: a long common beginning and a short end of each prompt's own, made of text where there is a tokenizer.
"""

import json
import random
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from statistics import fmean

from transformers import AutoConfig, AutoTokenizer

from benchmarks.decoder.options import BenchOptions
from decoding import Engine, SamplingParams, Sequence

_SHORT = (8, 24)  # tokens of a templated prompt's own, without a tokenizer


@dataclass(frozen=True)
class Corpus:
    """Prompts, each of which is generated `samples` times."""

    kind: str
    prompts: tuple[tuple[int, ...], ...]
    samples: int
    params: SamplingParams  # no row ends before max_tokens
    seed: int

    def rows(self, num_rows: int) -> list[tuple[int, ...]]:
        """Return the prompts of the first rows; the samples of a prompt are neighbours."""
        return [self.prompts[row // self.samples] for row in range(num_rows)]

    def sequences(self, num_rows: int) -> list[Sequence]:
        """Return fresh sequences of the first rows, all of the same length: there is no end token."""
        return [
            Sequence.create(prompt, self.params, run_seed=self.seed, row=row // self.samples, sample=row % self.samples)
            for row, prompt in enumerate(self.rows(num_rows))
        ]

    @property
    def new_tokens(self) -> int:
        """Output tokens of every row."""
        return self.params.max_tokens

    @property
    def prompt_tokens(self) -> dict[str, float]:
        """Tokens of the shortest, the mean and the longest prompt."""
        lengths = [len(prompt) for prompt in self.prompts]
        return {"shortest": min(lengths), "mean": fmean(lengths), "longest": max(lengths)}

    @property
    def is_greedy(self) -> bool:
        return self.params.temperature == 0

    @property
    def max_model_len(self) -> int:
        """Tokens that the longest row has in the end."""
        return max(len(prompt) for prompt in self.prompts) + self.new_tokens


def generate(engine: Engine, sequences: Iterable[Sequence]) -> None:
    """Run the sequences to their ends; raise RuntimeError if one fails."""
    for sequence in engine.stream(sequences):
        if sequence.error:
            raise RuntimeError(f"the engine failed: {sequence.error}")


def make_corpus(options: BenchOptions, pair: Path) -> Corpus:
    """Return the corpus of these options for this pair; raise ValueError if they contradict each other."""
    num_prompts = -(-max(options.num_rows(batch) for batch in options.batches) // options.samples)
    has_tokenizer = (pair / "target" / "tokenizer.json").exists()
    texts = _texts(options.prompts_file, pair / "target") if has_tokenizer and options.prompts_file else []
    config = AutoConfig.from_pretrained(pair / "target")
    rng = random.Random(options.seed)
    kind = options.corpus
    if kind == "auto":
        kind = "text" if has_tokenizer and options.prompts_file else "random"
    if kind == "text" and not texts:
        raise ValueError(f"--corpus text needs a tokenizer in {pair / 'target'} and --prompts-file with rows in it")
    vocab_size, lengths = config.vocab_size, options.prompt_lengths
    match kind:
        case "templated":
            head = list(chain.from_iterable(texts))[-options.prefix :]
            head = head or _random_tokens(rng, vocab_size, (options.prefix, options.prefix))
            ends = texts or [_random_tokens(rng, vocab_size, _SHORT) for _ in range(num_prompts)]
            rows = [head + ends[i % len(ends)] for i in range(num_prompts)]
        case "text":
            rows = [texts[i % len(texts)] for i in range(num_prompts)]
        case _:
            rows = [_random_tokens(rng, vocab_size, lengths) for _ in range(num_prompts)]
    prompts = tuple(tuple(row) for row in rows)
    corpus = Corpus(kind, prompts, options.samples, options.sampling_params(), options.seed)
    if corpus.max_model_len > config.max_position_embeddings:
        raise ValueError(
            f"the longest row would have {corpus.max_model_len} tokens and the target sees "
            f"{config.max_position_embeddings}; lower --new-tokens, --prompt-lengths or --prefix"
        )
    return corpus


def _random_tokens(rng: random.Random, vocab_size: int, lengths: tuple[int, int]) -> list[int]:
    return [rng.randrange(vocab_size) for _ in range(rng.randint(*lengths))]


def _texts(file: Path, target: Path) -> list[list[int]]:
    tokenizer = AutoTokenizer.from_pretrained(target)
    texts: list[list[int]] = []
    for line in file.read_text().splitlines():
        row = json.loads(line)
        if "messages" in row:
            text = tokenizer.apply_chat_template(row["messages"], add_generation_prompt=True, tokenize=False)
        else:
            text = row["prompt"]
        texts.append(tokenizer(text, add_special_tokens="messages" not in row)["input_ids"])
    return [text for text in texts if text]
