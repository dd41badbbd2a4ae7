"""The drafters. A new one is a file here, a name in `DrafterName` and a case in `make_drafter`.

The losslessness tests run over every name of `DRAFTERS`, so a lossy drafter cannot land.
"""

from typing import Literal, assert_never, get_args

from decoding.drafters.base import Drafter, NoDrafter
from decoding.drafters.hybrid import HybridDrafter
from decoding.drafters.model import ModelDrafter
from decoding.drafters.ngram import NGramDrafter
from decoding.drafters.suffix import SuffixDrafter
from decoding.network.language_model import LanguageModel

__all__ = ["DRAFTERS", "NEED_A_MODEL", "Drafter", "DrafterName", "make_drafter"]

DrafterName = Literal["none", "ngram", "suffix", "model", "hybrid"]
DRAFTERS: tuple[DrafterName, ...] = get_args(DrafterName)
NEED_A_MODEL: tuple[DrafterName, ...] = ("model", "hybrid")


def make_drafter(
    name: DrafterName, draft: LanguageModel | Drafter | None, vocab_size: int, num_slots: int, max_model_len: int
) -> Drafter:
    """Return the drafter of that name. Those of `NEED_A_MODEL` need `draft`: a model, or a drafter that has one."""
    match name:
        case "none":
            return NoDrafter()
        case "ngram":
            return NGramDrafter()
        case "suffix":
            return SuffixDrafter()
        case "model":
            return _by_model(draft, vocab_size, num_slots, max_model_len)
        case "hybrid":
            return HybridDrafter(SuffixDrafter(), _by_model(draft, vocab_size, num_slots, max_model_len))
        case _:
            assert_never(name)


def _by_model(draft: LanguageModel | Drafter | None, vocab_size: int, num_slots: int, max_model_len: int) -> Drafter:
    assert draft is not None, "`EngineOptions.pick_drafter` refuses a drafter whose model is not named"
    if isinstance(draft, LanguageModel):
        return ModelDrafter(draft, vocab_size, num_slots, max_model_len)
    return draft
