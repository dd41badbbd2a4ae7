"""EngineOptions: what an engine may use, checked when it is made."""

from dataclasses import dataclass
from typing import Any, Literal, get_args

from decoding.choices import (
    DRAFTER_OF_HEAD,
    DRAFTERS,
    NEED_A_HEAD,
    NEED_A_MODEL,
    DrafterName,
    Exact,
    Fused,
    Verification,
)

_DEFAULT_MAX_MODEL_LEN = 4096
_SLOTS = 16  # that `auto` is, where the memory of no GPU decides
MOST_LANES = 16  # of an engine, where their number follows from a measured delay
DraftLength = Literal["adaptive", "fixed"]
DraftVocabulary = Literal["same", "map"]


@dataclass(frozen=True, kw_only=True)
class EngineOptions:
    """The slots, lengths and drafter that an engine may use.

    Under coupled verification and in float32, only max_model_len (where a text is cut) changes tokens. Under rejection
    the drafter and the draft length do, too; the distribution stays the target's (of each row by itself: rows that
    share a seed share noise, and what one shows of it enters the draft lengths of the other). Unadjusted is lossy.
    """

    drafter: DrafterName | None = None
    """Drafter; unless given, 'model' or the head's own as the draft that is named is a model or a head, else 'none'."""
    num_speculative_tokens: int = 8
    """Most tokens that a row drafts in a round (1 to 64)."""
    draft_length: DraftLength = "adaptive"
    """Tokens to draft: adaptive drafts as many as pay by measured times and acceptance, fixed always the most."""
    verification: Verification = "coupled"
    """coupled writes the target's own tokens; rejection samples from the target's distribution; unadjusted, which is
    there to compare with, does neither: it draws anew from all tokens where a drafted one is rejected."""
    num_slots: int | Literal["auto"] = "auto"
    """Rows that an engine works on at once; auto is 16, or on a whole engine's GPU what its memory holds, to 256."""
    tokens_per_slot: int | None = None
    """Tokens of a row on average: each slot has so much memory for keys and values, in pages of 256 that rows get as
    they grow, where our GPU kernels run. Elsewhere, and unless given, each slot has memory for max_model_len."""
    num_lanes: int | None = None
    """Groups of rows that take turns where drafts or layers are in other processes, so that one goes on while others
    wait; unless given, as many as hide the delay that is measured when the engine is loaded."""
    max_prefill_tokens: int | None = None
    """Prompt tokens read between two rounds of full slots; unless given 512, on CUDA 2048."""
    exact: Exact = "auto"
    """GPU products in which no row depends on the batch; off is the library's, auto is off in float32 alone."""
    fused: Fused = "auto"
    """required refuses a target or draft model whose layers do not run fused, and recorded on a GPU; auto says so."""
    draft_window: int | None = None
    """Last positions of a row that a draft model on a GPU sees, with the first 4; 0 is all, unless given by cost."""
    max_model_len: int | None = None
    """Tokens of prompt and output together; unless given the target's context, at most 4096."""

    def __post_init__(self) -> None:
        """Check every field."""
        if isinstance(self.num_slots, str) and self.num_slots != "auto":
            raise ValueError(f"engine.num_slots must be 'auto' or a number of at least 1, got {self.num_slots!r}")
        counts = ("num_slots", "tokens_per_slot", "num_lanes", "max_prefill_tokens")
        for name, least in (*((name, 1) for name in counts), ("max_model_len", 2)):
            value = self.slots if name == "num_slots" else getattr(self, name)
            if value is not None and value < least:
                raise ValueError(f"engine.{name} must be at least {least}, got {value}")
        if self.max_model_len is not None and (self.tokens_per_slot or 0) > self.max_model_len:
            raise ValueError(
                f"engine.tokens_per_slot is {self.tokens_per_slot}, more than a row may have (engine.max_model_len is "
                f"{self.max_model_len}); lower it, or leave it out: then each slot has memory for a whole row"
            )
        if not 1 <= self.num_speculative_tokens <= 64:
            raise ValueError(f"engine.num_speculative_tokens must be 1 to 64, got {self.num_speculative_tokens}")
        if self.verification not in get_args(Verification):
            rules = ", ".join(map(repr, get_args(Verification)))
            raise ValueError(f"engine.verification must be one of {rules}, got {self.verification!r}")
        if self.draft_window is not None and not (self.draft_window == 0 or self.draft_window >= 16):
            raise ValueError(f"engine.draft_window must be 0 (all positions) or at least 16, got {self.draft_window}")
        if self.exact not in ("auto", "on", "off"):
            raise ValueError(f"engine.exact must be 'auto', 'on' or 'off', got {self.exact!r}")
        if self.fused not in ("auto", "required"):
            raise ValueError(f"engine.fused must be 'auto' or 'required', got {self.fused!r}")
        if self.drafter is not None and self.drafter not in DRAFTERS:
            raise ValueError(f"engine.drafter must be one of {', '.join(DRAFTERS)}, got {self.drafter!r}")

    def refuse_slow(self, model: str, why: str) -> None:
        """Raise ValueError, if fused layers are required, for a model that does not run so for this reason."""
        if self.fused == "required":
            raise ValueError(f"engine.fused is 'required', but {model!r} would be slow: {why}; use 'auto' to run it so")

    @property
    def slots(self) -> int:
        """The number of slots; for `auto` that of an engine whose memory was not looked at."""
        return _SLOTS if self.num_slots == "auto" else self.num_slots

    def pick_drafter(self, draft: str | None) -> DrafterName:
        """Return the drafter to use with this draft: a model, or a head. Raises ValueError if they do not fit."""
        if self.drafter in NEED_A_MODEL and draft is None:
            raise ValueError(
                f"engine.drafter is {self.drafter!r}, but no draft model is named; name one (models.draft), or use "
                "'suffix' or 'none'"
            )
        if draft is None:
            return self.drafter or "none"
        from decoding.heads.format.folder import is_head, kind_of_head  # needs torch; --help is here, too

        kind: Any = kind_of_head(draft)
        of_head = DRAFTER_OF_HEAD.get(kind) if kind is not None else None
        if self.drafter in NEED_A_HEAD and of_head not in (None, self.drafter):
            raise ValueError(
                f"engine.drafter is {self.drafter!r}, but {draft!r} is a head of kind {kind!r}, with which "
                f"{of_head!r} drafts; leave the drafter out, or name another head"
            )
        if self.drafter == "model" and kind == "mtp":
            raise ValueError(
                f"engine.drafter is 'model', but the draft is the head in the target's own files ({draft!r}); leave "
                "the drafter out, or name a draft model"
            )
        if self.drafter is not None:
            return self.drafter
        return of_head or ("eagle3" if is_head(draft) else "model")  # a head that is refused later, by its kind

    def check_draft_vocabulary(self, draft: str | None, vocabulary: DraftVocabulary) -> None:
        """Raise ValueError if the draft has no vocabulary of its own that could be mapped."""
        if vocabulary not in ("same", "map"):
            raise ValueError(f"models.draft_vocabulary must be 'same' or 'map', got {vocabulary!r}")
        if vocabulary == "same":
            return
        why = ""
        if draft is None:
            why = "no draft is named"
        elif self.drafts_with_a_head(draft):
            why = f"models.draft ({draft}) is a draft head, whose tokens are its target's"
        elif self.draft_window:
            why = f"engine.draft_window is {self.draft_window}, which counts the target's tokens"
        if why:
            raise ValueError(
                f"models.draft_vocabulary is 'map', for a draft with another tokenizer, but {why}; drop one"
            )

    def drafts_with_a_head(self, draft: str | None) -> bool:
        """Tell whether the drafter reads the target's hidden states: `draft` is a head, as far as that is known."""
        from decoding.heads.format.folder import is_head

        drafter = self.pick_drafter(draft)
        return drafter in NEED_A_HEAD or (drafter == "hybrid" and draft is not None and is_head(draft))


def settle_max_model_len(wanted: int | None, max_positions: int | None) -> int:
    """Return the most tokens of prompt and output: as wanted, or what the target sees, at most 4096.

    Raises ValueError if the target sees fewer than wanted.
    """
    if wanted is None:
        return min(max_positions or _DEFAULT_MAX_MODEL_LEN, _DEFAULT_MAX_MODEL_LEN)
    if max_positions is not None and wanted > max_positions:
        raise ValueError(
            f"engine.max_model_len is {wanted}, but the target sees at most {max_positions} positions; lower it"
        )
    return wanted
