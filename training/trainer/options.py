"""What a training is asked for: the models, how the draft learns, on which workers, and whether that pays."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal, get_args

from decoding.choices import Device, DType
from pipeline.limits import check_numbers
from training.learners.loss_names import LOSSES, LossName

What = Literal["draft", "eagle3", "dflash", "dflash2", "mtp", "assistant"]
WHATS: tuple[What, ...] = get_args(What)


@dataclass(frozen=True, kw_only=True)
class ModelOptions:
    """The models: one teaches, the other learns."""

    target: str
    """Target model, which wrote the corpus: a folder with safetensors, or a hub name."""
    draft: str | None = None
    """What training begins with: a draft model, or a head; absent for a new head."""
    tokenizer: str | None = None
    """Folder of the tokenizer; the target's unless given."""
    device: Device = "auto"
    """Where workers train; auto takes GPUs if workers.num_gpus gives them any."""
    dtype: DType = "auto"
    """Type of the target's weights; auto is float32 on CPU (not with FP8 weights), else the checkpoint's."""


@dataclass(frozen=True, kw_only=True)
class TrainOptions:
    """What learns, and how."""

    what: What = "draft"
    """What learns: draft, a model of its own; eagle3, dflash or dflash2, a head that reads the target's hidden states;
    mtp, the head in the target's own files; or assistant, that of a Gemma 4."""
    loss: LossName = "kl"
    """Loss: kl, from the target's distribution at the corpus' temperature; ce, of the text's tokens; tv, total
    variation; kl_tv, kl first and tv in the last fifth."""
    steps_ahead: int = 4
    """Tokens that a head learns to draft: as many as will be drafted."""
    draft_vocab: int = 32_000
    """Tokens of the target that a new head knows: the most frequent ones of the corpus, or all if there are no more.
    An mtp head and an assistant know all."""
    seq_len: int = 2048
    """Length of a packed row; a longer document loses its end."""
    tokens_per_step: int = 16_384
    """Size of a step, over all workers: whole packed rows."""
    epochs: float = 1.0
    """Times that the corpus is read, about: padding is counted as text."""
    max_steps: int | None = None
    """Number of steps, in place of what epochs says."""
    learning_rate: float = 1e-4
    """Largest learning rate of AdamW, after the warm-up."""
    warmup: float = 0.02
    """Share of the training in which the learning rate rises; then it falls along a cosine to zero."""
    clip: float = 1.0
    """Largest norm of a step's gradient; a longer one is shortened."""
    gradient_checkpointing: bool | None = None
    """Whether a draft's layers are computed twice to save memory; on GPUs unless given."""
    checkpoint_every: int = 200
    """Steps between checkpoints: what a crash can cost at most."""
    max_hours: float | None = None
    """Hours after which training ends early, with the learning rate at zero by then."""
    seed: int = 0  # of the order of the texts, and of a new head's weights

    def __post_init__(self) -> None:
        for name, allowed in (("what", WHATS), ("loss", LOSSES)):
            if getattr(self, name) not in allowed:
                raise ValueError(f"train.{name} must be one of {', '.join(allowed)}, got {getattr(self, name)!r}")
        check_numbers(self, "train.", at_least_1=("steps_ahead", "draft_vocab", "max_steps", "checkpoint_every"))
        check_numbers(self, "train.", above_0=("epochs", "learning_rate", "clip", "max_hours"))
        if self.seq_len < 2:
            raise ValueError(f"train.seq_len must be 2 or more, got {self.seq_len}")
        if not 0 <= self.warmup < 1:
            raise ValueError(f"train.warmup must be a share from 0 to below 1, got {self.warmup}")
        if self.tokens_per_step < self.seq_len:
            raise ValueError(
                f"train.tokens_per_step is {self.tokens_per_step}, less than one row of train.seq_len {self.seq_len}; "
                "raise it, or shorten the rows"
            )

    @property
    def rows_per_step(self) -> int:
        """Packed rows of a step, over all workers."""
        return self.tokens_per_step // self.seq_len


@dataclass(frozen=True, kw_only=True)
class WorkerOptions:
    """The processes that train, each with a share of every step."""

    num: int = 1
    """Workers."""
    min_num: int | None = None
    """Fewest workers that training goes on with, while the cluster has no room for more; all of them unless given."""
    num_gpus: float = 0.0
    """GPUs of each worker; without one it trains on CPU."""
    num_cpus: float = 1.0
    """CPUs of each worker."""
    max_failures: int = 3
    """Workers that may die before training fails; each time it goes on from the last checkpoint."""

    def __post_init__(self) -> None:
        check_numbers(self, "workers.", at_least_1=("num",), not_negative=("num_gpus", "num_cpus", "max_failures"))
        if self.min_num is not None and not 1 <= self.min_num <= self.num:
            raise ValueError(f"workers.min_num must be from 1 to workers.num ({self.num}), got {self.min_num}")

    @property
    def is_elastic(self) -> bool:
        """Whether training may go on with fewer workers."""
        return self.min_num is not None and self.min_num < self.num

    def at_most(self, num: int) -> WorkerOptions:
        """Return the same with at most `num` workers, but not with fewer than there must be."""
        return replace(self, num=min(self.num, max(num, self.min_num or self.num)))

    @property
    def demand(self) -> dict[str, float]:
        """What each worker takes of a node, by Ray's names."""
        return {"CPU": self.num_cpus, **({"GPU": self.num_gpus} if self.num_gpus else {})}


def check_together(models: ModelOptions, options: TrainOptions, workers: WorkerOptions) -> None:
    """Raise ValueError for options that do not fit each other."""
    if options.what == "draft" and models.draft is None:
        raise ValueError(
            "train.what is 'draft' and models.draft names none; name the draft model that training begins with"
        )
    if workers.num > options.rows_per_step:
        raise ValueError(
            f"a step has {options.rows_per_step} rows (train.tokens_per_step over train.seq_len) for {workers.num} "
            "workers; raise train.tokens_per_step, or use fewer workers"
        )
    if models.device == "cuda" and not workers.num_gpus:
        raise ValueError("models.device is 'cuda' and workers.num_gpus is 0; give each worker a GPU")


@dataclass(frozen=True)
class Worth:
    """Whether training pays for what is left of a run: `seconds_saved` against the seconds that training takes."""

    remaining_tokens: int
    tokens_per_s: float  # of the run now
    length_before: float  # tokens a round now (mean acceptance length)
    length_after: float  # and with the draft that is hoped for

    @property
    def seconds_saved(self) -> float:
        """remaining_tokens / tokens_per_s * (1 - length_before / length_after): a round costs what it did before."""
        return self.remaining_tokens / self.tokens_per_s * (1 - self.length_before / self.length_after)
