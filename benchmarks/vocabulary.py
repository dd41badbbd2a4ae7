"""Times the work that a round does over the vocabulary, apart from any forward: `python -m benchmarks.vocabulary`.

A round is K draft steps (one position a row each) and one verification (K + 1 positions). Probabilities fall with
their rank as in written text (Zipf's law; `--exponent`, lower is flatter), in an order of their own at each position;
drafts agree with the target most of the time. Prints medians in milliseconds, one line a shape, one column a way of
sampling.
"""

import argparse
from dataclasses import replace
from functools import partial

import torch

from benchmarks.harness import median_seconds
from decoding import SamplingParams, Sequence
from decoding.sampling.rows import Rows, sampling_batch
from decoding.sampling.rules import COUPLED
from decoding.sampling.verdicts import Verdicts
from decoding.sampling.verify import Draft, verify_coupled

SAMPLING = {
    "greedy": {"temperature": 0},
    "T=.8": {"temperature": 0.8},
    "T=.8 top_p .95": {"temperature": 0.8, "top_p": 0.95},
    "T=.8 top_k 50 top_p .95": {"temperature": 0.8, "top_k": 50, "top_p": 0.95},
}
NUM_DRAFT_TOKENS = 4
CLOSE_CALL = 1e-4


def make_rows(num_rows: int, names: list[str]) -> Rows:
    """Return rows of a few tokens whose sampling parameters go through `names` in turn."""
    sequences = tuple(
        Sequence.create([1, 2, 3], SamplingParams(**SAMPLING[names[row % len(names)]]), row=row)  # type: ignore[arg-type]
        for row in range(num_rows)
    )
    sampling = sampling_batch(sequences, frozenset(), torch.device("cpu"))
    return Rows(sequences, sampling, (NUM_DRAFT_TOKENS,) * num_rows, COUPLED)


@torch.inference_mode()
def vocabulary_work(rows: Rows, draft_logits_BKV: torch.Tensor, target_logits_BJV: torch.Tensor) -> Verdicts:
    """Do all that a round does with logits: the drafter's picks, step by step, and the verdict on them."""
    rows = replace(rows)  # rows remember what was computed for them
    drafted_BK = torch.zeros(len(rows.sequences), 0, dtype=torch.long)
    for step in range(NUM_DRAFT_TOKENS):
        token_ids_B1 = rows.pick(draft_logits_BKV[:, step : step + 1], drafted_BK, step).token_ids_BJ
        drafted_BK = torch.cat([drafted_BK, token_ids_B1], dim=1)
    margin = CLOSE_CALL if target_logits_BJV.dtype == torch.float32 else 0.0
    picks = rows.pick(target_logits_BJV, drafted_BK, 0, margin)
    num_drafted_B = torch.full((len(drafted_BK),), NUM_DRAFT_TOKENS)
    return verify_coupled(picks, Draft(drafted_BK, num_drafted_B), rows.sampling, margin)


def make_logits(
    num_rows: int, vocab_size: int, dtype: torch.dtype, exponent: float
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the draft's logits [B, K, V] and the target's [B, J, V]."""
    generator = torch.Generator().manual_seed(0)
    shape = (num_rows, NUM_DRAFT_TOKENS + 1, vocab_size)
    ranks_BJV = torch.rand(shape, generator=generator).argsort(-1) + 1
    target_BJV = -exponent * ranks_BJV.float().log()
    draft_BJV = target_BJV + 0.3 * torch.randn(shape, generator=generator)
    return draft_BJV[:, :-1].contiguous().to(dtype), target_BJV.to(dtype)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, nargs="+", default=[1, 16, 32])
    parser.add_argument("--vocab", type=int, nargs="+", default=[3072, 8192, 32000, 152064])
    parser.add_argument("--dtype", choices=["float32", "bfloat16"], default="float32")
    parser.add_argument("--exponent", type=float, default=1.5)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--repeats", type=int, default=7)
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    columns = {**{name: [name] for name in SAMPLING}, "a mixture of these": list(SAMPLING)}
    print(
        f"ms a round of {NUM_DRAFT_TOKENS} draft tokens, {args.dtype}, threads {args.threads}, exponent {args.exponent}"
    )
    print("rows   vocab" + "".join(f"{name:>26}" for name in columns))
    for vocab_size in args.vocab:
        for num_rows in args.rows:
            draft_BKV, target_BJV = make_logits(num_rows, vocab_size, getattr(torch, args.dtype), args.exponent)
            line = f"{num_rows:4d}  {vocab_size:6d}"
            for names in columns.values():
                work = partial(vocabulary_work, make_rows(num_rows, names), draft_BKV, target_BJV)
                line += f"{1000 * median_seconds(work, repeats=args.repeats):26.2f}"
            print(line, flush=True)


if __name__ == "__main__":
    main()
