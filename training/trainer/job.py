"""TrainingJob: all that a worker is told of a training, as plain data."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from ray.data import DataIterator

from decoding.checkpoint.supported import load_config, model_folder
from decoding.device import pick_device
from decoding.heads.format.folder import is_head
from training.corpus.corpus import Corpus
from training.corpus.on_policy import check_is_targets_text
from training.learners.draft_learner import DraftLearner, trainable_model
from training.learners.head_learner import HeadLearner, trainable_config
from training.learners.learner import Learner
from training.learners.packing import Document
from training.learners.teacher import Teacher
from training.trainer.options import ModelOptions, TrainOptions

_ROWS_PER_BATCH = 256  # of the corpus, read at once


@dataclass(frozen=True, kw_only=True)
class TrainingJob:
    """What to train on what, and for how long."""

    models: ModelOptions  # with folders, absolute
    target_name: str  # as it was given
    options: TrainOptions
    corpus: Corpus
    known_ids: list[int] | None  # the target's ids of a new head's tokens; None: all, or no new head
    num_steps: int
    has_gpu: bool  # whether each worker holds one

    def device(self) -> torch.device:
        """Return where this worker trains. Raises ValueError if that is not there."""
        if not self.has_gpu:
            return torch.device("cpu")
        return pick_device("cuda" if self.models.device == "auto" else self.models.device)

    def learner(self) -> Learner:
        """Load the models.

        Raises ValueError, in one line, for models that do not fit, and for the texts of another target.
        """
        options, device = self.options, self.device()
        place: Any = device.type
        teacher = Teacher.load(self.models.target, place, self.models.dtype, self.target_name)
        check_is_targets_text(self.corpus, teacher.logits_behind, teacher.end_token_ids, teacher.network.dtype)
        if options.what == "draft":
            assert self.models.draft is not None, "options are checked before a job is made"
            saves_memory = options.gradient_checkpointing
            saves_memory = device.type == "cuda" if saves_memory is None else saves_memory
            return DraftLearner.load(self.models.draft, teacher, place, options.loss, saves_memory)
        if self.models.draft is not None:
            return HeadLearner.load(self.models.draft, teacher, options.steps_ahead, options.loss)
        return HeadLearner.new(teacher, self.known_ids, options.steps_ahead, options.loss, seed=options.seed)


def check_can_learn(draft: str, target: str) -> None:
    """Raise ValueError, in one line, if the draft in a folder cannot learn from this target; no weight is read."""
    draft, target = model_folder(draft), model_folder(target)
    config = load_config(target)
    if is_head(draft):
        trainable_config(draft, config, target)
    else:
        trainable_model(draft, target, int(config.get_text_config().vocab_size))


def documents_of(shard: DataIterator) -> Iterator[Document]:
    """Yield the texts of a dataset of `Corpus.dataset`, in its order."""
    for batch in shard.iter_batches(batch_size=_ROWS_PER_BATCH, batch_format="pyarrow", prefetch_batches=2):
        columns = (batch[name].to_pylist() for name in ("prompt_token_ids", "output_token_ids", "temperature"))
        for prompt, output, temperature in zip(*columns, strict=True):
            yield Document(tuple(prompt), tuple(output), temperature)


def wants_new_head(models: ModelOptions, options: TrainOptions) -> bool:
    """Tell whether a new head is trained. Raises ValueError if models.draft is not of the kind that train.what says."""
    if models.draft is None:
        return options.what == "eagle3"
    if is_head(models.draft) != (options.what == "eagle3"):
        found = "a head" if is_head(models.draft) else "a model of its own"
        raise ValueError(
            f"models.draft {models.draft!r} is {found}, and train.what is {options.what!r}; set train.what to "
            f"{'eagle3' if is_head(models.draft) else 'draft'!r}, or name another draft"
        )
    return False
