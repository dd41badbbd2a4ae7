"""TrainingPlan: what a training will do, known before it begins: its texts, its steps, its memory, its identity."""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from dataclasses import asdict, dataclass, replace
from math import ceil
from os.path import abspath

from decoding.checkpoint.generation import end_token_ids_of
from decoding.checkpoint.loading import footprint_of
from decoding.checkpoint.supported import load_config, max_positions, model_folder
from decoding.heads.fit import fitting_config, head_footprint
from pipeline.run.fingerprint import model_fingerprint, tokenizer_fingerprint
from training.corpus.corpus import Corpus
from training.corpus.options import CorpusOptions
from training.learners.new_head import coverage, special_tokens, tokens_to_know
from training.trainer.job import TrainingJob, check_can_learn, wants_new_head
from training.trainer.options import ModelOptions, TrainOptions, WorkerOptions, check_together

_WITHOUT_EFFECT = ("checkpoint_every", "gradient_checkpointing")  # on what a draft learns
_BYTES_A_WEIGHT = 16  # float32: the weight, its gradient, and AdamW's two averages


@dataclass(frozen=True)
class TextCounts:
    """What is in the texts that are trained on."""

    num_rows: int
    num_tokens: int  # prompts and outputs, without the ends of texts that are too long
    num_output_tokens: int
    num_taught: int  # of the output tokens: all but those behind the end of a text that is too long
    of_tokens: tuple[int, ...]  # how often each of the target's tokens is an output token

    @classmethod
    def of(cls, corpus: Corpus, vocab_size: int, max_len: int) -> TextCounts:
        """Count the texts of a corpus that are not held out; what stands behind `max_len` tokens is cut off.

        Raises ValueError if there are none, or nothing of their outputs is left.
        """
        num_rows = num_tokens = num_taught = 0
        of_tokens: Counter[int] = Counter()
        for example in corpus.examples(held_out=False):
            num_rows += 1
            num_prompt, num_output = len(example.prompt_token_ids), len(example.output_token_ids)
            num_tokens += min(num_prompt + num_output, max_len)
            num_taught += max(0, min(num_output, max_len - num_prompt))
            of_tokens.update(example.output_token_ids)
        if not num_rows:
            raise ValueError(
                "the corpus has no text to train on: all its rows are held out; lower corpus.held_out_share, or name "
                "more of the target's texts in corpus.path"
            )
        if not num_taught:
            raise ValueError(
                f"the corpus has no output to learn from: all {num_rows} prompts fill the {max_len} tokens that are "
                "read of a text; raise train.seq_len, or name texts with shorter prompts"
            )
        if foreign := [token for token in of_tokens if not 0 <= token < vocab_size]:
            raise ValueError(
                f"the corpus has token {foreign[0]}, and the target knows {vocab_size} tokens; name the target that "
                "wrote it, and its tokenizer"
            )
        return cls(
            num_rows, num_tokens, of_tokens.total(), num_taught, tuple(of_tokens[token] for token in range(vocab_size))
        )


@dataclass(frozen=True)
class TrainingPlan:
    """A checked training, of which nothing has been done yet."""

    models: ModelOptions  # with folders, absolute
    target_name: str  # as it was given
    options: TrainOptions
    workers: WorkerOptions
    corpus: Corpus
    counts: TextCounts
    known_ids: tuple[int, ...] | None  # tokens of a new head; None: all, or no new head
    fingerprints: dict[str, str]
    num_bytes: int  # of a worker's memory, without what a forward takes for a moment

    @classmethod
    def make(
        cls, models: ModelOptions, corpus: CorpusOptions, options: TrainOptions, workers: WorkerOptions
    ) -> TrainingPlan:
        """Check everything that can be known without loading a model. Raises ValueError or OSError, in one line."""
        check_together(models, options, workers)
        target_name, is_new = models.target, wants_new_head(models, options)
        models = replace(
            models,
            target=_absolute(models.target),
            draft=None if models.draft is None else _absolute(models.draft),
            tokenizer=None if models.tokenizer is None else _absolute(models.tokenizer),
        )
        config = load_config(models.target)
        if models.draft is not None:
            check_can_learn(models.draft, models.target)
        vocab_size = int(config.get_text_config().vocab_size)
        opened = Corpus.open(corpus, models.target, models.tokenizer)
        counts = TextCounts.of(opened, vocab_size, _max_len(models, options))
        known: tuple[int, ...] | None = None
        if is_new and options.draft_vocab < vocab_size:
            forced = special_tokens(models.tokenizer or models.target) | end_token_ids_of(models.target, config)
            known = tuple(tokens_to_know(counts.of_tokens, options.draft_vocab, forced))
        fingerprints = {
            "corpus": opened.fingerprint(),
            "target": model_fingerprint(models.target),
            "tokenizer": tokenizer_fingerprint(models.tokenizer or models.target),
            **({} if models.draft is None else {"draft": model_fingerprint(models.draft)}),
        }
        num_bytes = _num_bytes(models, options, workers, len(known) if known else vocab_size)
        return cls(models, target_name, options, workers, opened, counts, known, fingerprints, num_bytes)

    @property
    def num_steps(self) -> int:
        """Steps of the training, unless train.max_hours ends it."""
        if self.options.max_steps is not None:
            return self.options.max_steps
        return ceil(self.options.epochs * self.counts.num_tokens / self.tokens_per_step)

    @property
    def tokens_per_step(self) -> int:
        """Tokens of a step's rows, padding included."""
        return self.options.rows_per_step * self.options.seq_len

    @property
    def identity(self) -> str:
        """A digest of what decides what the draft learns: the same command goes on with the same training."""
        options = {name: value for name, value in asdict(self.options).items() if name not in _WITHOUT_EFFECT}
        said = {**self.fingerprints, **options, "dtype": self.models.dtype}
        return hashlib.sha256(json.dumps(said, sort_keys=True).encode()).hexdigest()

    @property
    def coverage(self) -> float:
        """Share of the texts' output tokens that the draft knows."""
        return 1.0 if self.known_ids is None else coverage(self.counts.of_tokens, self.known_ids)

    @property
    def job(self) -> TrainingJob:
        """What the workers are told."""
        return TrainingJob(
            models=self.models,
            target_name=self.target_name,
            options=self.options,
            corpus=self.corpus,
            known_ids=None if self.known_ids is None else list(self.known_ids),
            num_steps=self.num_steps,
            has_gpu=self.workers.num_gpus > 0,
        )


def _absolute(path: str) -> str:
    """Return the folder of a model, such that a worker in another working directory finds it."""
    return abspath(model_folder(path))


def _max_len(models: ModelOptions, options: TrainOptions) -> int:
    """Return how many tokens of a text are read: a packed row's, unless a model reads fewer."""
    readers = [models.target, *([models.draft] if models.draft is not None and options.what == "draft" else [])]
    limits = (max_positions(load_config(path)) for path in readers)
    return min([options.seq_len, *(limit for limit in limits if limit is not None)])


def _num_bytes(models: ModelOptions, options: TrainOptions, workers: WorkerOptions, num_known: int) -> int:
    """Return the bytes of weights, gradients and AdamW's averages of the draft, and of the target's weights."""
    config = load_config(models.target)
    said = str(config.get_text_config().dtype or "float32").removeprefix("torch.")
    dtype = models.dtype if models.dtype != "auto" else said if workers.num_gpus else "float32"
    target = footprint_of(config, dtype, 1, 1).weights
    if options.what == "draft":
        assert models.draft is not None, "options are checked before"
        return target + footprint_of(load_config(models.draft), "float32", 1, 1).weights // 4 * _BYTES_A_WEIGHT
    if models.draft is not None:
        head = fitting_config(models.draft, config, models.target)
        return target + head_footprint(models.draft, head, "float32", 1, 1).weights // 4 * _BYTES_A_WEIGHT
    text = config.get_text_config()
    H, M, V = (
        int(text.hidden_size),
        int(getattr(text, "intermediate_size", None) or 4 * text.hidden_size),
        int(text.vocab_size),
    )
    trained = 3 * H * H + 8 * H * H + 3 * H * M + num_known * H  # about: fc, attention, MLP, output layer
    return target + trained * _BYTES_A_WEIGHT + V * H * 4
