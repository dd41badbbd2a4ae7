"""A draft with another tokenizer: which of its tokens are the target's, and how much of the target's text they are.

The share is measured at load, on text that the target writes itself. A token that the draft lacks can never be
accepted, so it ends every draft; where two tokens in five are such tokens, drafts do not pay.
"""

import logging
from collections import deque

from decoding.drafters.base import NoDrafter
from decoding.drafters.model import MappedDraft
from decoding.engine.lane import Lane
from decoding.network.language_model import LanguageModel
from decoding.network.target import Target, once_more
from decoding.pace.schedule import FixedSchedule
from decoding.sampling.rules import COUPLED
from decoding.sampling_params import SamplingParams
from decoding.sequence import Sequence
from decoding.vocabulary.vocabulary_map import VocabularyMap

LEAST_SHARE = 0.6
_NUM_ROWS, _NUM_TOKENS = 16, 48
_log = logging.getLogger(__name__)


def map_draft(draft: LanguageModel, draft_path: str, target: Target, target_path: str) -> MappedDraft:
    """Return the draft with a map of its vocabulary. What is in the target's slots is lost.

    Raises ValueError, in one line, if the tokenizers cannot be compared, or if fewer than 60 % of the tokens that the
    target writes are tokens of the draft.
    """
    vocabulary = VocabularyMap.between(target_path, draft_path, target.vocab_size, draft.vocab_size)
    share = vocabulary.share_in_common(once_more(lambda: _text_of(target)))
    described = (
        f"{vocabulary.num_common} of the {target.vocab_size} tokens of {target_path!r}, which are {share:.0%} of what "
        "it writes"
    )
    if share < LEAST_SHARE:
        raise ValueError(
            f"the draft {draft_path!r} has {described}, expected at least {LEAST_SHARE:.0%}: it could hardly help; use "
            "a draft of the target's own family, or a draft head"
        )
    _log.info("the draft %r has %s", draft_path, described)
    return MappedDraft(draft, vocabulary)


def _text_of(target: Target) -> list[int]:
    """Return tokens that the target writes at temperature 1, as texts of their own: always the same."""
    num_tokens = min(_NUM_TOKENS, (target.max_positions or _NUM_TOKENS + 2) - 2)
    params = SamplingParams(max_tokens=num_tokens, seed=0)
    first = sorted(target.eos_token_ids)[:1] or [0]  # behind the end of a text another one begins
    rows = deque(Sequence.create(first, params, row=row) for row in range(_NUM_ROWS))
    texts = list(rows)
    lane = Lane(
        target,
        NoDrafter(),
        FixedSchedule(0),
        rows,
        num_slots=_NUM_ROWS,
        max_model_len=num_tokens + 2,
        max_prefill_tokens=_NUM_ROWS,
        rule=COUPLED,
    )
    while not all(text.is_finished for text in texts):
        lane.advance(_NUM_ROWS)
    lane.close()
    return [token_id for text in texts for token_id in text.output_token_ids]
