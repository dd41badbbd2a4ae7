"""TrainingProgress: what is known of a training after a step."""

from dataclasses import dataclass


@dataclass(frozen=True)
class TrainingProgress:
    """A step, over all workers."""

    step: int
    num_steps: int
    loss: float  # of a prediction
    agreement: float  # share of tokens whose most likely next token is the target's
    outside: float  # the target's probability of tokens that the draft does not know, on average
    num_tokens: int  # read so far, prompts and repetitions included
    tokens_per_s: float
    seconds: float  # of training so far, restarts included
    seconds_left: float
    worker_pid: int  # the process of the first worker

    def point(self) -> dict[str, float]:
        """Return what the loss curve keeps of it."""
        names = ("step", "loss", "agreement", "outside", "num_tokens")
        return {**{name: getattr(self, name) for name in names}, "seconds": round(self.seconds, 2)}
