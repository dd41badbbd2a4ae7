"""`python -m benchmarks.roofline`: what plain and speculative decoding could reach on a GPU, which need not be here.

python -m benchmarks.roofline --model 8b --batch 128 --context 1088 --gpu h100
python -m benchmarks.roofline --model llama-3.1-8b --batch 32,64,128 --gpu a100 --acceptance 0.7

`benchmarks/roofline/ideal.py` says how the times are estimated; nothing is measured.
"""

import argparse
import sys
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from benchmarks.harness import listed, show, write_json
from benchmarks.pair_factory import SHAPES, Shape
from benchmarks.roofline.estimate import Estimate, Question, answer
from benchmarks.roofline.gpus import GPUS, Gpu
from benchmarks.roofline.launched import Round, can_predict, headed_round, launched_round
from benchmarks.roofline.model_size import ModelSize

_QWEN_8B = SHAPES["8b"]
_QWEN_DRAFT = _QWEN_8B.draft
assert _QWEN_DRAFT is not None, "8b is a pair of two published sizes"
PAIRS = {  # a target's sizes and a draft's
    "8b": (_QWEN_8B, _QWEN_DRAFT),  # Qwen3-8B, Qwen3-0.6B
    "llama-3.1-8b": (  # Llama-3.1-8B, Llama-3.2-1B
        Shape(4096, 32, 32, 8, 14336, 128256),
        Shape(2048, 16, 32, 8, 8192, 128256, head_size=64),
    ),
    "qwen3-32b": (
        replace(_QWEN_8B, hidden=5120, layers=64, heads=64, feed_forward=25600),
        _QWEN_DRAFT,
    ),  # Qwen3-32B, Qwen3-0.6B
}
GIB = 2**30
_HEADINGS = ("batch", "a plain step reads", "plain/s", "draft/s", "windowed draft/s", "one-layer head/s")
_ROUND_HEADINGS = ("batch", "products ms", "keys ms", "kernels ms", "round ms", "plain/s", "vLLM/s, a guess", "ratio")
_NUM_DRAFTED = 3  # tokens that a row drafts with a head in a predicted round
_MEMORY_HEADINGS = ("plain GiB", "with draft GiB", "with windowed draft GiB", "fits")


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the estimate for each batch; return 0."""
    parser = _make_parser()
    given = parser.parse_args(arguments)
    if not given.batch:
        parser.error("--batch must be numbers from 1 up, got none")
    try:
        question = _question(given)
        estimates = [answer(question, batch) for batch in given.batch]
    except ValueError as error:
        parser.error(str(error))
    _print(given.model, question, estimates)
    rounds, headed = dict[int, Round](), dict[int, Round]()
    if can_predict(question.gpu):
        target = PAIRS[given.model][0]
        for batch in given.batch:
            asked = question.gpu, target, question.target, batch, question.context
            rounds[batch], headed[batch] = launched_round(*asked), headed_round(*asked, _NUM_DRAFTED)
    if rounds:
        title = "a round without drafts as our kernels are launched, and vLLM's as guessed"
        show(title, _ROUND_HEADINGS, [_round(batch, found) for batch, found in rounds.items()])
        title = f"a round with an EAGLE-3 head and {_NUM_DRAFTED} drafted tokens, and vLLM's as guessed"
        num_tokens = sum(question.acceptance**number for number in range(_NUM_DRAFTED + 1))
        lines = [_round(batch, found, num_tokens) for batch, found in headed.items()]
        show(title, ["tokens/s" if name == "plain/s" else name for name in _ROUND_HEADINGS], lines)
        print(
            "products: by the tiles that are counted as the fastest; the clock may find none so fast (at 128 lines an "
            "H100's library took 1.3 times as long)\n"
            "counted: tiles, programs, waves of programs, bytes, kernels; guessed: 7 TB/s of the second cache, keys at "
            "70 % of the bandwidth, 3 us a kernel, vLLM at 85 % of the ideal and 0.65 ms "
            "(benchmarks/roofline/launched.py)"
        )
    if given.json:
        write_json(
            given.json,
            {"model": given.model, **asdict(question), "batches": estimates, "rounds": rounds, "headed": headed},
        )
    return 0


def _question(given: argparse.Namespace) -> Question:
    target, draft = (shape.config() for shape in PAIRS[given.model])
    sizes = ModelSize.of_config(target), ModelSize.of_config(draft)
    assert sizes[0] is not None, "the pairs above are of the kind that is counted"
    assert sizes[1] is not None, "the pairs above are of the kind that is counted"
    return Question(
        gpu=GPUS[given.gpu],
        target=sizes[0],
        draft=sizes[1],
        head=ModelSize.of_head(target),
        context=given.context,
        slot_length=given.slot_length or given.context,
        draft_window=given.draft_window,
        acceptance=given.acceptance,
    )


def _round(batch: int, found: Round, num_tokens: float = 1.0) -> list[str]:
    times = (found.products, found.keys, found.kernels, found.seconds)
    speeds = (batch * num_tokens / found.seconds, batch * num_tokens / found.peer)
    ratio = f"{found.peer / found.seconds:.2f}"
    return [str(batch), *(f"{1e3 * each:.1f}" for each in times), *(f"{each:,.0f}" for each in speeds), ratio]


def _print(model: str, question: Question, estimates: Sequence[Estimate]) -> None:
    gpu = question.gpu
    print(
        f"{model} on {gpu.device_name}: {gpu.bandwidth / 1e12:.2f} TB/s, {gpu.flops / 1e12:,.0f} TFLOP/s in bfloat16, "
        f"{gpu.memory / GIB:.1f} GiB; {question.context} positions a row, acceptance {question.acceptance:g}. "
        "An estimate: nothing is measured."
    )
    title = "output tokens a second (best number of draft tokens)"
    show(title, _HEADINGS, [_speeds(estimate) for estimate in estimates])
    title = f"weights and slots of {question.slot_length} positions"
    show(title, ("batch", *_MEMORY_HEADINGS), [_memory(estimate, gpu) for estimate in estimates])
    print(
        "estimate: 90 % of the bandwidth, 70 % of the compute, 0.3 ms a round, 0.05 ms a draft step "
        "(benchmarks/roofline/ideal.py)\n"
        f"windowed draft: the draft reads {question.draft_window} positions of a row at most; one-layer head: of the "
        "sizes of EAGLE-3, accepted as often as the draft\n"
        "memory: weights and slots alone; graphs, logits and activations come on top (a gigabyte is 10^9 bytes here, "
        "and the GPU has some per cent more)"
    )


def _speeds(estimate: Estimate) -> list[str]:
    speeds = (estimate.drafted, estimate.windowed, estimate.headed)
    return [
        str(estimate.batch),
        f"{estimate.weight_bytes / 1e9:.1f} + {estimate.cache_bytes / 1e9:.1f} GB",
        f"{estimate.plain.tokens_per_second:,.0f}",
        *(f"{speed.tokens_per_second:,.0f} ({speed.num_draft_tokens})" for speed in speeds),
    ]


def _memory(estimate: Estimate, gpu: Gpu) -> list[str]:
    needed = (estimate.plain_memory, estimate.drafted_memory, estimate.windowed_memory)
    return [str(estimate.batch), *(f"{num_bytes / GIB:.1f}" for num_bytes in needed), estimate.fitting(gpu)]


def _make_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.roofline",
        description=(__doc__ or "").partition(": ")[2],
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    flag: Any = parser.add_argument
    flag("--model", choices=PAIRS, default="8b", help="a target and its draft (default %(default)s)")
    flag("--batch", type=listed(int), default=(32, 64, 128, 256), metavar="SIZES", help="rows at a time, with commas")
    flag("--context", type=int, default=1088, help="mean positions of a row (default %(default)s)")
    flag("--slot-length", type=int, help="positions of a slot, for the memory (default: --context)")
    flag("--gpu", choices=GPUS, default="h100", help="default %(default)s")
    flag("--acceptance", type=float, default=0.8, help="of each draft token (default %(default)s)")
    flag("--draft-window", type=int, default=260, metavar="N", help="positions that a windowed draft reads (260)")
    flag("--json", type=Path, metavar="FILE", help="write everything that is printed")
    return parser


if __name__ == "__main__":
    sys.exit(main())
