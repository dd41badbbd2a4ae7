"""Estimate: what a target and a draft could reach together on a GPU at one batch, and the memory that they need."""

from dataclasses import dataclass

from benchmarks.roofline.gpus import Gpu
from benchmarks.roofline.ideal import Drafting, Speed, best_speed, memory_bytes, plain_speed
from benchmarks.roofline.model_size import Forward, ModelSize


@dataclass(frozen=True)
class Question:
    """What the estimate is asked for."""

    gpu: Gpu
    target: ModelSize
    draft: ModelSize
    head: ModelSize
    context: int  # positions of a row that a step reads, on average
    slot_length: int  # positions of a row that memory is reserved for
    draft_window: int
    acceptance: float

    def __post_init__(self) -> None:
        """Raise ValueError for numbers that mean nothing."""
        for name in ("context", "draft_window"):
            if getattr(self, name) < 1:
                raise ValueError(f"--{name.replace('_', '-')} must be at least 1, got {getattr(self, name)}")
        if self.slot_length < self.context:
            raise ValueError(f"--slot-length must be at least --context, got {self.slot_length} < {self.context}")
        if not 0 < self.acceptance < 1:
            raise ValueError(f"--acceptance must be between 0 and 1, got {self.acceptance}")


@dataclass(frozen=True, kw_only=True)
class Estimate:
    """The answer for one batch: bytes, and output tokens a second."""

    batch: int
    weight_bytes: int  # that a plain step reads
    cache_bytes: int
    plain: Speed
    drafted: Speed
    windowed: Speed
    headed: Speed
    plain_memory: int
    drafted_memory: int
    windowed_memory: int

    def fitting(self, gpu: Gpu) -> str:
        """Return which ways of decoding fit the GPU's memory."""
        ways = (
            ("plain", self.plain_memory),
            ("draft", self.drafted_memory),
            ("windowed draft", self.windowed_memory),
        )
        fits = [way for way, needed in ways if needed <= gpu.memory]
        return "all" if len(fits) == len(ways) else f"only {', '.join(fits)}" if fits else "NONE"


def answer(question: Question, batch: int) -> Estimate:
    """Return bytes, speeds and memory at this batch. Raises ValueError for a batch without rows."""
    if batch < 1:
        raise ValueError(f"--batch must be numbers from 1 up, got {batch}")
    q, step = question, Forward.of_round(batch, 1, question.context)
    whole = q.slot_length

    def best(size: ModelSize, positions: int) -> Speed:
        return best_speed(q.gpu, q.target, Drafting(size, positions, q.acceptance), batch, q.context)

    return Estimate(
        batch=batch,
        weight_bytes=q.target.weight_bytes_read(step),
        cache_bytes=q.target.cache_bytes_read(step),
        plain=plain_speed(q.gpu, q.target, batch, q.context),
        drafted=best(q.draft, q.context),
        windowed=best(q.draft, q.draft_window),
        headed=best(q.head, q.context),
        plain_memory=memory_bytes(batch, (q.target, whole)),
        drafted_memory=memory_bytes(batch, (q.target, whole), (q.draft, whole)),
        windowed_memory=memory_bytes(batch, (q.target, whole), (q.draft, whole)),  # a window bounds what is read
    )
