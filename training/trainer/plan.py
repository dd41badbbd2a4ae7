"""TrainingPlan: what a training will do, known before it begins: its texts, its steps, its memory, its identity."""

from __future__ import annotations

import hashlib
import json
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from itertools import islice
from math import ceil
from os.path import abspath
from typing import Any

import torch

from decoding.checkpoint.generation import end_token_ids_of
from decoding.checkpoint.loading import footprint_of
from decoding.checkpoint.supported import load_config, max_positions, model_folder
from decoding.choices import OWN_HEAD
from decoding.device import pick_device, synchronize
from decoding.heads.assistant_folder import new_assistant
from decoding.heads.fit import fitting_config, head_numbers
from decoding.heads.format.folder import is_head, kind_of_head
from decoding.heads.mtp.files import family_of, own_head
from pipeline.run.fingerprint import model_fingerprint, tokenizer_fingerprint
from training.corpus.corpus import Corpus
from training.corpus.on_policy import check_is_targets_text
from training.corpus.options import CorpusOptions
from training.learners.assistant_learner import AssistantLearner
from training.learners.draft_learner import DraftLearner, trainable_model
from training.learners.head_learner import HeadLearner, coverage, special_tokens, tokens_to_know, trainable_config
from training.learners.mtp_learner import MtpLearner
from training.learners.packing import Document, Learner, PackedRows, RowStream
from training.learners.teacher import Teacher
from training.trainer.optimizer import Optimizer, add_gradients
from training.trainer.options import ModelOptions, TrainOptions, WorkerOptions, check_together

_WITHOUT_EFFECT = ("checkpoint_every", "gradient_checkpointing")  # on what a draft learns
_WITH_A_FOLDER = ("eagle3", "dflash", "dflash2")  # heads by `HeadLearner`
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
            draft=models.draft if models.draft in (None, OWN_HEAD) else _absolute(models.draft),
            tokenizer=None if models.tokenizer is None else _absolute(models.tokenizer),
        )
        config = load_config(models.target)
        if options.what == "mtp":
            family_of(models.target)
        if options.what == "assistant":
            new_assistant(config, models.target)
        if models.draft is not None:
            check_can_learn(models.draft, models.target)
        vocab_size = int(config.get_text_config().vocab_size)
        opened = Corpus.open(corpus, models.target, models.tokenizer)
        counts = TextCounts.of(opened, vocab_size, _max_len(models, options))
        known: tuple[int, ...] | None = None
        if is_new and options.what in _WITH_A_FOLDER and options.draft_vocab < vocab_size:
            forced = special_tokens(models.tokenizer or models.target) | end_token_ids_of(models.target, config)
            known = tuple(tokens_to_know(counts.of_tokens, options.draft_vocab, forced))
        fingerprints = {
            "corpus": opened.fingerprint(),
            "target": model_fingerprint(models.target),
            "tokenizer": tokenizer_fingerprint(models.tokenizer or models.target),
            **({} if models.draft in (None, OWN_HEAD) else {"draft": model_fingerprint(models.draft)}),
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

    def documents(self) -> Iterator[Document]:
        """Yield the texts that are not held out, in the order of the corpus."""
        for example in self.corpus.examples(held_out=False):
            yield Document(example.prompt_token_ids, example.output_token_ids, example.params.temperature)

    def device(self) -> torch.device:
        """Return where this worker trains. Raises ValueError if that is not there."""
        if not self.workers.num_gpus:
            return torch.device("cpu")
        return pick_device("cuda" if self.models.device == "auto" else self.models.device)

    def learner(self) -> Learner:
        """Load the models.

        Raises ValueError, in one line, for models that do not fit, and for the texts of another target.
        """
        options, device, draft = self.options, self.device(), self.models.draft
        place: Any = device.type
        teacher = Teacher.load(self.models.target, place, self.models.dtype, self.target_name)
        check_is_targets_text(self.corpus, teacher.logits_behind, teacher.end_token_ids, teacher.network.dtype)
        if options.what == "draft":
            assert draft is not None, "options are checked before a plan is made"
            saves_memory = options.gradient_checkpointing
            saves_memory = device.type == "cuda" if saves_memory is None else saves_memory
            return DraftLearner.load(draft, teacher, place, options.loss, saves_memory)
        how, seed = (teacher, options.steps_ahead, options.loss), options.seed
        if options.what == "mtp":
            return MtpLearner.new(*how, seed=seed) if draft is None else MtpLearner.load(*how)
        if options.what == "assistant":
            return AssistantLearner.new(*how, seed=seed)
        if draft is not None:
            return HeadLearner.load(draft, *how)
        steps, loss = options.steps_ahead, options.loss
        return HeadLearner.new(teacher, self.known_ids, steps, loss, kind=options.what, seed=seed)


def check_can_learn(draft: str, target: str) -> None:
    """Raise ValueError, in one line, if the draft in a folder cannot learn from this target; no weight is read."""
    target, kind = model_folder(target), learns_as(draft)
    config = load_config(target)
    match kind:
        case "mtp":
            own_head(target)
        case "assistant":
            raise ValueError(f"{draft!r} is an assistant, of which only new ones are trained; leave models.draft out")
        case "draft":
            trainable_model(model_folder(draft), target, int(config.get_text_config().vocab_size))
        case _:
            trainable_config(model_folder(draft), config, target)


def learns_as(draft: str) -> str:
    """Return what train.what says of a draft: its kind, without a download; "head" of one that is not known here."""
    return kind_of_head(draft) or ("head" if is_head(draft) else "draft")


def wants_new_head(models: ModelOptions, options: TrainOptions) -> bool:
    """Tell whether a new head is trained. Raises ValueError if models.draft is not of the kind that train.what says."""
    if models.draft is None:
        return options.what != "draft"
    if (kind := learns_as(models.draft)) != options.what:
        found = "a model of its own" if kind == "draft" else f"a head of kind {kind}"
        raise ValueError(
            f"models.draft {models.draft!r} is {found}, and train.what is {options.what!r}; set train.what to "
            f"{kind!r}, or name another draft"
        )
    return False


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
    if models.draft is not None and options.what in _WITH_A_FOLDER:
        head = fitting_config(models.draft, config, models.target)
        return target + head_numbers(models.draft, head)[0] * _BYTES_A_WEIGHT
    text = config.get_text_config()
    H, M, V = (
        int(text.hidden_size),
        int(getattr(text, "intermediate_size", None) or 4 * text.hidden_size),
        int(text.vocab_size),
    )
    trained = 3 * H * H + 8 * H * H + 3 * H * M + num_known * H  # about: fc, attention, MLP, output layer
    return target + trained * _BYTES_A_WEIGHT + V * H * 4


_NUM_STEPS = 3  # the first one is left out: it reserves memory and may compile


def measured_seconds(plan: TrainingPlan) -> float:
    """Return the seconds that the training takes if each worker is as fast as this process. Nothing is written.

    The models are loaded for it. What workers tell each other and what checkpoints take is not included. Raises
    ValueError as training does for models and texts that do not fit.
    """
    options, learner, device = plan.options, plan.learner(), plan.device()
    optimizer = Optimizer(learner.network, options.learning_rate, options.warmup, options.clip)
    few = list(islice(plan.documents(), _NUM_STEPS * options.tokens_per_step))
    stream = RowStream(lambda: few, options.seq_len, learner.max_len, options.seed)
    seconds = []
    for _ in range(_NUM_STEPS):
        began = time.perf_counter()
        rows = stream.take(options.rows_per_step)
        num_predictions = learner.num_predictions(PackedRows.of(rows))
        add_gradients(learner, rows[:: plan.workers.num], num_predictions, 0.5, device)
        optimizer.step(0.5)
        synchronize(device)
        seconds.append(time.perf_counter() - began)
    return min(seconds[1:]) * plan.num_steps
