"""How long a step takes on this machine, by doing some: what a plan says where it is asked to measure."""

import time

from decoding.device import synchronize
from training.learners.packing import Document, PackedRows
from training.trainer.gradients import add_gradients
from training.trainer.optimizer import Optimizer
from training.trainer.plan import TrainingPlan
from training.trainer.row_stream import RowStream

_NUM_STEPS = 3  # the first one is left out: it reserves memory and may compile


def measured_seconds(plan: TrainingPlan) -> float:
    """Return the seconds that the training takes if each worker is as fast as this process. Nothing is written.

    The models are loaded for it. What workers tell each other and what checkpoints take is not included. Raises
    ValueError as training does for models and texts that do not fit.
    """
    job, options = plan.job, plan.options
    learner, device = job.learner(), job.device()
    optimizer = Optimizer(learner.module, options.learning_rate, options.warmup, options.clip)

    def documents() -> list[Document]:
        examples = plan.corpus.examples(held_out=False)
        few = zip(range(_NUM_STEPS * options.tokens_per_step), examples, strict=False)
        return [Document(each.prompt_token_ids, each.output_token_ids, each.params.temperature) for _, each in few]

    stream = RowStream(documents, options.seq_len, learner.max_len, options.seed)
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
