"""A drafter by its name. A new one is a file beside this one, a name in `DrafterName` and a case in `make_drafter`."""

from collections.abc import Sequence as Seq
from typing import assert_never

from decoding.choices import DrafterName
from decoding.drafters.assistant import AssistantDrafter
from decoding.drafters.base import Drafter, NoDrafter
from decoding.drafters.block_drafter import DFlashDrafter
from decoding.drafters.head_drafters import Eagle3Drafter, PEagleDrafter
from decoding.drafters.hybrid import HybridDrafter
from decoding.drafters.in_turn import InTurn
from decoding.drafters.lookups.ngram import NGramDrafter
from decoding.drafters.lookups.suffix import SuffixDrafter
from decoding.drafters.model import ModelDrafter
from decoding.drafters.modules import ModulesDrafter
from decoding.heads.assistant_head import AssistantHead
from decoding.heads.dflash_head import DFlashHead
from decoding.heads.eagle3_head import Eagle3Head
from decoding.heads.mtp.head import MtpHead
from decoding.network.language_model import LanguageModel
from decoding.network.target import Target

Draft = LanguageModel | Eagle3Head | DFlashHead | AssistantHead  # what a drafter of NEED_A_MODEL computes with


def make_drafter(
    name: DrafterName,
    draft: Draft | Drafter | None,
    vocab_size: int,
    num_slots: int,
    max_model_len: int,
    num_draft_tokens: int = 0,
    target: Target | None = None,
) -> Drafter:
    """Return the drafter of that name. Those of `NEED_A_MODEL` need `draft`: a model, a head, or a drafter with one.

    `num_draft_tokens` as in `Target.allocate`. `target` is the one beside it, in whose slots an assistant reads.
    """
    match name:
        case "none":
            return NoDrafter()
        case "ngram":
            return NGramDrafter()
        case "suffix":
            return SuffixDrafter()
        case "hybrid":
            model = make_drafter("model", draft, vocab_size, num_slots, max_model_len, num_draft_tokens, target)
            return HybridDrafter(SuffixDrafter(), model)
        case "model" | "eagle3" | "dflash" | "mtp" | "assistant":
            assert draft is not None, "`EngineOptions.pick_drafter` refuses a drafter whose model is not named"
            if isinstance(draft, LanguageModel):
                return ModelDrafter(draft, vocab_size, num_slots, max_model_len, num_draft_tokens=num_draft_tokens)
            if isinstance(draft, MtpHead) and len(draft.modules) > 1:
                return ModulesDrafter(draft, num_slots, max_model_len)
            if isinstance(draft, Eagle3Head):
                of_pairs = PEagleDrafter if draft.block_tokens else Eagle3Drafter
                return of_pairs(draft, num_slots, max_model_len)
            if isinstance(draft, AssistantHead):
                assert isinstance(target, LanguageModel), "an assistant reads the slots of a target in this process"
                return AssistantDrafter(draft, target, num_slots, max_model_len)
            return DFlashDrafter(draft, num_slots, max_model_len) if isinstance(draft, DFlashHead) else draft
        case _:
            assert_never(name)


def make_in_turn(
    drafters: Seq[tuple[DrafterName, Draft | None]],
    vocab_size: int,
    num_slots: int,
    max_model_len: int,
    num_draft_tokens: int = 0,
    target: Target | None = None,
) -> InTurn:
    """Return these drafters as one, with all else as in `make_drafter`: one lookup, and one drafter for each draft."""
    sizes, parts = (vocab_size, num_slots, max_model_len, num_draft_tokens, target), dict[object, Drafter]()

    def part(name: DrafterName, draft: Draft | None) -> Drafter:
        key = (name, id(draft)) if draft is None else id(draft)
        if key not in parts:
            parts[key] = make_drafter(name, draft, *sizes)
        return parts[key]

    made: list[Drafter] = []
    for name, draft in drafters:
        own = part("model" if name == "hybrid" else name, draft)
        lookup = part("suffix", None) if name == "hybrid" else None
        made.append(HybridDrafter(lookup, own) if isinstance(lookup, SuffixDrafter) else own)
    return InTurn(made, num_slots)
