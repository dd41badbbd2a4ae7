"""How far back a draft model sees: a window at the end of its rows, where that pays.

A draft of many layers has nearly as many keys and values a token as its target, and reads them in each of its steps.
With the last few hundred positions, and the first ones that attention leans on (StreamingLLM, arXiv 2309.17453;
MagicDec, arXiv 2408.11049), it drafts almost as well. The text does not depend on it: it is only a worse or a better
guess, and draft lengths follow what is accepted.
"""

from decoding.network.language_model import LanguageModel

NUM_FIRST = 4  # positions at the beginning of a row that are always seen
_WINDOW = 256  # positions, where the engine chooses
_WORTH = 0.25  # of the weights' bytes: what the positions beyond the window must take in a step


def settle_draft_window(wanted: int | None, draft: LanguageModel, num_slots: int, max_model_len: int) -> int:
    """Return the positions that the draft is to see at the end of a row, 0 for all.

    Unless `wanted`, it is a window where a step over rows of half the longest length would read much more than the
    weights. Raises ValueError if a window is wanted that the draft cannot have.
    """
    has_kernels = draft.fused is not None and draft.fused.is_on_gpu
    if wanted is not None:
        if wanted and not has_kernels:
            raise ValueError(
                f"engine.draft_window is {wanted}, but a window needs a draft whose layers run on our GPU kernels, and "
                f"this one runs on {draft.runs_on} with other code; leave draft_window out, or set it to 0"
            )
        return wanted
    if not has_kernels:
        return 0
    assert draft.fused is not None
    num_beyond = num_slots * (max_model_len // 2 - _WINDOW)
    return _WINDOW if num_beyond * draft.fused.num_bytes_a_token > _WORTH * draft.num_bytes_read else 0
