"""The drafters. A new one is a file here, a name in `DrafterName` and a case in `make_drafter`.

The losslessness tests run over every name of `DRAFTERS`, so a lossy drafter cannot land.
"""

from typing import Literal, assert_never, get_args

from decoding.drafters.base import Drafter
from decoding.drafters.model import ModelDrafter
from decoding.drafters.ngram import NGramDrafter
from decoding.drafters.none import NoDrafter
from decoding.model import LanguageModel

__all__ = ["DRAFTERS", "Drafter", "DrafterName", "make_drafter"]

DrafterName = Literal["none", "ngram", "model"]
DRAFTERS: tuple[DrafterName, ...] = get_args(DrafterName)


def make_drafter(
    name: DrafterName, draft: LanguageModel | None, vocab_size: int, num_slots: int, max_model_len: int
) -> Drafter:
    """The drafter of that name; `draft` is the loaded draft model, which only `model` needs."""
    match name:
        case "none":
            return NoDrafter()
        case "ngram":
            return NGramDrafter()
        case "model":
            if draft is None:
                raise ValueError("drafter 'model' needs a draft model; name one, or use drafter 'ngram' or 'none'")
            return ModelDrafter(draft, vocab_size, num_slots, max_model_len)
        case _:
            assert_never(name)
