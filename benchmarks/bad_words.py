"""What `bad_words` of the largest size cost the host: a change of rows, some rows of a batch, and one forward's cut.

    python -m benchmarks.bad_words [--rows 64] [--repeats 5]

Rows share their parameters or each have their own; words have one token, four, or as many as are allowed. It prints the
median milliseconds of the processor.
"""

import argparse
import time
from collections.abc import Callable
from dataclasses import replace
from statistics import median

import torch

from decoding.sampling.distribution import SamplingBatch, forbid
from decoding.sampling.token_history import TokenHistory
from decoding.sampling_params import SamplingParams

_NUM_WORDS, _LONGEST, _VOCAB = 2000, 404, 32_000
_POSITIONS, _LENGTH = 4, 512  # drafted tokens and one more; tokens so far


def _params(length: int, first: int) -> SamplingParams:
    words = (tuple((first + 7 * word + place) % _VOCAB for place in range(length)) for word in range(_NUM_WORDS))
    return SamplingParams(bad_words=tuple(words))


def _median_ms(work: Callable[[], object], repeats: int) -> float:
    times = []
    for _ in range(repeats):
        start = time.process_time()
        work()
        times.append(time.process_time() - start)
    return 1000 * median(times)


def _built(params: list[SamplingParams]) -> SamplingBatch:
    rows = len(params)
    return SamplingBatch.build(params, range(rows), [frozenset({1})] * rows, [4] * rows, torch.device("cpu"))


def main() -> None:
    """Print a line for each kind of rows and length of words."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=64)
    parser.add_argument("--repeats", type=int, default=5)
    asked = parser.parse_args()
    torch.set_num_threads(1)
    logits_BJV = torch.zeros(asked.rows, _POSITIONS, _VOCAB)
    history = TokenHistory(
        torch.randint(_VOCAB, (asked.rows, _LENGTH), generator=torch.Generator().manual_seed(0)),
        torch.full((asked.rows,), 4),
        torch.arange(_LENGTH - _POSITIONS, _LENGTH).expand(asked.rows, -1),
    )
    for length in (1, 4, _LONGEST):
        one = _params(length, 0)
        kinds = {
            "the same parameters": [one] * asked.rows,
            "equal parameters": [replace(one) for _ in range(asked.rows)],
        }
        if length < _LONGEST:
            kinds["words of their own"] = [_params(length, row) for row in range(asked.rows)]
        for name, params in kinds.items():
            first = _median_ms(lambda params=params: _built(params), 1)  # type: ignore[misc]
            batch = _built(params)
            times = {
                "first build": first,
                "build": _median_ms(lambda params=params: _built(params), asked.repeats),  # type: ignore[misc]
                "take": _median_ms(lambda batch=batch: batch.take(range(0, asked.rows, 2)), asked.repeats),  # type: ignore[misc]
                "cut": _median_ms(lambda batch=batch: forbid(logits_BJV, batch, history), asked.repeats),  # type: ignore[misc]
            }
            said = ", ".join(f"{what} {time_ms:.1f} ms" for what, time_ms in times.items())
            print(f"{_NUM_WORDS} words of {length}, {asked.rows} rows with {name}: {said}", flush=True)


if __name__ == "__main__":
    main()
