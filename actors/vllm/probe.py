"""The probe of an engine's drafts: rows whose every token is known to be the likeliest.

Drafts must not change what a row says. At temperature 0 each token is the target's most likely one after what stands
before it, and at a temperature close to 0 it is nearly so. Rows of both kinds run alone and side by side. The finished
texts are then scored as prompts, by forwards without any draft.
"""

import random

from decoding.engine.scored_text import ScoredText
from decoding.engine.token_engine import TokenEngine
from decoding.sampling_params import SamplingParams
from decoding.sequence import Sequence

_KINDS = (
    SamplingParams(temperature=0.0, max_tokens=24, ignore_eos=True),
    SamplingParams(temperature=0.03, max_tokens=24, ignore_eos=True),
)
_LENGTHS = (5, 3, 7, 4)  # tokens of a phrase, of which a prompt has three: what looks up earlier text finds it
_NEAR_TIE = 0.6  # in log-probability: more than rounding to bfloat16 explains, and e^20 to 1 at temperature 0.03


def check_drafts(engine: TokenEngine) -> None:
    """Raise ValueError if the engine drafts nothing, or writes a token that the target would not have written."""
    num_drafted = 0
    for kinds in ((0, 0), (1, 1), (0, 1)):
        rows = _rows(engine, kinds)
        engine.submit(rows)
        while engine.has_work:
            engine.step()
        for row in rows:
            _check(engine, row)
            num_drafted += row.num_draft_tokens
    if not num_drafted:
        raise ValueError("vLLM drafted nothing in a test at load; use another drafter, or engine.drafter 'none'")


def _rows(engine: TokenEngine, kinds: tuple[int, int]) -> list[Sequence]:
    generator = random.Random(0)
    phrases = ([generator.randrange(engine.vocab_size) for _ in range(length)] for length in _LENGTHS)
    return [Sequence.create(3 * phrase, _KINDS[kinds[row % 2]], row=row) for row, phrase in enumerate(phrases)]


def _check(engine: TokenEngine, row: Sequence) -> None:
    if row.error is not None:
        raise ValueError(f"the engine's drafts cannot be checked: {row.error}")
    text = ScoredText(row.prompt_token_ids, (tuple(row.output_token_ids),), num_top=1)
    engine.score([text])
    if text.error is not None:
        raise ValueError(f"the engine's drafts cannot be checked: {text.error}")
    for position, score in enumerate(text.scores[0]):
        (_, best), *_ = score.top
        if not score.logprob >= best - _NEAR_TIE:  # also if one of them is not a number
            raise ValueError(
                "vLLM's drafts change the text here: in a test at load it wrote a token of log-probability "
                f"{score.logprob:.2f} where the target's own choice has {best:.2f} (output token {position}, "
                f"temperature {row.params.temperature:g}); use engine.drafter 'none', or engine.backend 'dray'"
            )
