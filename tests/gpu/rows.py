"""The rows of the check-up's tests: many where there is a GPU, few in the interpreter."""

import torch

from decoding import SamplingParams, Sequence
from tests.decoding.tiny import random_prompts

HAS_GPU = torch.cuda.is_available()
VOCAB_SIZE = 1003 if HAS_GPU else 70  # no multiple of a block or a tile
CONTEXT = 512 if HAS_GPU else 64  # on a GPU longer than a chunk of keys
NUM_NEW_TOKENS = 24 if HAS_GPU else 5
_LENGTHS = (7, 1, 12, 3, 25, 1, 300, 2, 16, 90, 4, 31, 9, 64, 65, 5, 250, 1, 33, 8) if HAS_GPU else (7, 1, 12, 3)

PROMPTS = random_prompts(_LENGTHS, VOCAB_SIZE, seed=4)
# A prompt that repeats itself gives the lookups something to find.
PROMPTS[4 if HAS_GPU else 2] = [5, 6, 7, 8] * (_LENGTHS[4 if HAS_GPU else 2] // 4)
_SAMPLING: list[dict[str, float]] = [
    {"temperature": 0.8},
    {"temperature": 0.0},
    {"temperature": 0.7, "top_p": 0.8},
    {"temperature": 1.0, "top_k": 12, "min_p": 0.02},
]
_MIXED: list[dict[str, object]] = [
    {"temperature": 0.4, "repetition_penalty": 1.4},
    {"temperature": 0.9, "top_k": 12, "top_p": 0.9, "min_p": 0.02, "frequency_penalty": 0.5},
    {"temperature": 1.0, "logit_bias": {3: 4.0, 4: -100.0}, "presence_penalty": 0.7},
    {"temperature": 2.0, "min_tokens": 4, "stop_token_ids": tuple(range(20))},
    {"temperature": 0.0, "repetition_penalty": 1.8, "frequency_penalty": -0.4},
    {"temperature": 0.8, "top_p": 0.6},
    {"temperature": 0.0},
    {"temperature": 0.9, "bad_words": [(a, b) for a in range(70) for b in range(a % 3, 70, 3)]},
    {"temperature": 0.8, "top_p": 0.9, "allowed_token_ids": tuple(range(5, 70, 2))},
]


def sequences() -> list[Sequence]:
    """The rows, with what a recorded round can do: temperature, top-k, top-p and min-p."""
    return _numbered([SamplingParams(max_tokens=NUM_NEW_TOKENS, **_SAMPLING[row % 4]) for row in range(len(PROMPTS))])


def greedy_sequences() -> list[Sequence]:
    """The rows, which take the likeliest tokens."""
    return _numbered([SamplingParams(max_tokens=NUM_NEW_TOKENS, temperature=0.0)] * len(PROMPTS))


def mixed_sequences() -> list[Sequence]:
    """Rows that also have penalties, biases, forbidden tokens, least lengths and stop ids."""
    return _numbered([SamplingParams(max_tokens=NUM_NEW_TOKENS, **params) for params in _MIXED])


def _numbered(params: list[SamplingParams]) -> list[Sequence]:
    return [
        Sequence.create(PROMPTS[row % len(PROMPTS)], own, run_seed=3, row=row, tag=row)
        for row, own in enumerate(params)
    ]
