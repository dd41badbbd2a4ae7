"""Parts: what an engine is made of. Models are loaded from paths, checked against each other and probed."""

import logging
from dataclasses import dataclass, replace
from typing import Protocol

from decoding.checkpoint.loading import DType
from decoding.checkpoint.supported import check_same_vocabulary, model_folder
from decoding.choices import NEED_A_MODEL, OWN_HEAD, DrafterName
from decoding.device import Device
from decoding.drafters.base import Drafter
from decoding.drafters.making import Draft, make_drafter, make_in_turn
from decoding.engine.options import MOST_LANES, DraftVocabulary, EngineOptions, settle_max_model_len
from decoding.fused.attention import Window
from decoding.grammar.grammars import Grammars
from decoding.heads.attach import attach, attach_assistant, attach_own, drawn
from decoding.heads.format.folder import is_assistant
from decoding.heads.mtp.files import own_head, settled_draft
from decoding.kept.models import load_checked
from decoding.network.language_model import LanguageModel
from decoding.network.target import LocalTarget, Target, once_more
from decoding.vocabulary.grammars import grammars_of
from decoding.vocabulary.vocabulary_map import VocabularyMap

# A draft of many layers has nearly as many keys and values a token as its target, and reads them in each of its steps.
# With the last few hundred positions, and the first ones that attention leans on (StreamingLLM, arXiv 2309.17453;
# MagicDec, arXiv 2408.11049), it drafts almost as well. The text does not depend on it: it is only a worse or a better
# guess, and draft lengths follow what is accepted.
_NUM_FIRST = 4  # positions at the beginning of a row that are always seen
_WINDOW = 256  # positions, where the engine chooses
_WORTH = 0.25  # of the weights' bytes: what the positions beyond the window must take in a step
# A token that a draft with another tokenizer lacks can never be accepted, so it ends every draft; where two tokens in
# five of what the target writes are such tokens, drafts do not pay.
_LEAST_SHARE = 0.6
_NUM_ROWS, _NUM_TOKENS = 16, 48  # that the target writes, to see
_log = logging.getLogger(__name__)


class RemoteDrafts(Protocol):
    """A draft model in other processes."""

    num_lanes: int  # of an engine at least, so that one is drafted for while others are verified
    most_lanes: int  # that one may have

    def connect(self, target: Target) -> bool:
        """Wait a while for the processes; return whether they came; raise ValueError if they cannot draft for it."""

    def drafter(self, lane: int, target: Target, num_slots: int, max_model_len: int) -> Drafter:
        """Make the drafter of a lane; one that was made before for the same lane must not be used any more."""


@dataclass(frozen=True)
class Parts:
    """What an engine is made of."""

    target: Target
    draft: Draft | None
    drafter_name: DrafterName
    max_model_len: int
    num_lanes: int = 1  # at least
    remote: RemoteDrafts | None = None  # in place of `draft`
    grammars: Grammars | None = None  # None: the engine has no tokenizer, and no output can have a grammar
    most_lanes: int = 1  # where more than `num_lanes` may hide what rounds wait for
    others: "tuple[Parts, ...]" = ()  # over the same target: their drafters take turns with this one's
    name: str = ""  # of its drafter and draft, for a reader, where drafters take turns
    left_out: tuple[str, ...] = ()  # drafts that were to take turns, too, and why they do not

    def target_of(self, lane: int) -> Target:
        """Return the target with a cache of this lane's own."""
        return self.target if lane == 0 else self.target.share()

    @property
    def fallback(self) -> str:
        """Which models run otherwise than they were to, and slower, and why; an empty text if none does."""
        models = [("target", self.target), *(("draft", each.draft) for each in self.in_turn)]
        said = [(what, getattr(model, "fallback", "")) for what, model in models]  # a head has none
        return "; ".join(dict.fromkeys(f"{what}: {why}" for what, why in said if why))

    @property
    def in_turn(self) -> "tuple[Parts, ...]":
        """The parts with each of the drafters alone."""
        return replace(self, others=()), *self.others

    def beside(self) -> "Parts":
        """Return the parts of another engine, over the same weights with caches of its own."""
        return replace(self, target=self.target.share(), draft=self.draft and self.draft.share())

    def make_drafter(self, lane: int, target: Target, num_slots: int, num_draft_tokens: int) -> Drafter:
        """Make a fresh drafter for `num_slots` rows of this lane, each of which drafts up to `num_draft_tokens`."""
        draft: Draft | Drafter | None = self.draft
        if self.remote is not None:
            draft = self.remote.drafter(lane, self.target, num_slots, self.max_model_len)
        elif self.draft is not None and lane:
            draft = self.draft.share()
        sizes = self.target.vocab_size, num_slots, self.max_model_len, num_draft_tokens
        if self.others:
            return make_in_turn([(each.drafter_name, each.draft) for each in self.in_turn], *sizes, target)
        return make_drafter(self.drafter_name, draft, *sizes, target)


def load_parts(
    target: str,
    draft: str | None,
    options: EngineOptions,
    device: Device,
    dtype: DType,
    remote: RemoteDrafts | None = None,
    target_model: Target | None = None,
    num_lanes: int = 1,
    draft_vocabulary: DraftVocabulary = "same",
    tokenizer: str | None = None,
) -> Parts:
    """Load the parts of an engine, as `Engine.load` says. Raises ValueError if they cannot work."""
    draft, why_none = settled_draft(draft, target, options.drafter)
    if why_none:
        _log.info("no draft: %s", why_none)
    if draft == OWN_HEAD:
        own_head(target)  # or it is refused before anything is loaded
    elif draft is not None and remote is None:
        draft = model_folder(draft)  # whose kind is then known
    drafter_name = options.pick_drafter(draft)
    options.check_draft_vocabulary(draft, draft_vocabulary)
    if options.draft_window and drafter_name not in NEED_A_MODEL:
        raise ValueError(
            f"engine.draft_window is {options.draft_window}, for a draft model, but the drafter is {drafter_name!r}; "
            "leave it out, or use drafter 'model' or 'hybrid'"
        )
    if target_model is None:
        target_model = load_checked(target, device, dtype, options.exact)
    _refuse_unfused(target_model, target, options)
    if isinstance(target_model, LanguageModel):
        target_model.tokens_per_slot = options.tokens_per_slot
    is_paged = isinstance(target_model, LanguageModel) and target_model.has_pages
    if options.tokens_per_slot is not None and not is_paged:
        _log.warning("engine.tokens_per_slot has no effect: %r has no pages on %s", target, target_model.runs_on)
    if target_model.is_batch_invariant:
        _log.info("our kernels run %r: its logits are the same, bit for bit, in any batch", target)
    elif options.exact == "on":
        raise ValueError(
            f"engine.exact is 'on', but the logits of {target!r} on {target_model.runs_on} depend on the batch (in "
            f"{str(target_model.dtype).removeprefix('torch.')}): parts of it do not run on our kernels; use 'auto'"
        )
    elif getattr(target_model, "has_exact_products", False):
        _log.warning("the logits of %r depend on the batch here, so near ties in its text may, too", target)
    draft_model: Draft | None = None
    max_model_len = settle_max_model_len(options.max_model_len, target_model.max_positions)
    grammars = grammars_of(tokenizer or target, target_model.vocab_size, target_model.eos_token_ids)
    if drafter_name in NEED_A_MODEL and remote is not None:
        remote.connect(target_model)
        # one lane more than the target has work for: that one is drafted for
        num_lanes, most_lanes = _lanes(options, max(remote.num_lanes, num_lanes + 1), remote.most_lanes)
        return Parts(target_model, None, drafter_name, max_model_len, num_lanes, remote, grammars, most_lanes)
    if drafter_name in NEED_A_MODEL and draft is not None:
        if options.drafts_with_a_head(draft):
            draft_model = _load_head(draft, target_model, target, options)
        else:
            model = _load_draft_model(draft, target_model, options, max_model_len, device, dtype)
            model.tokens_per_slot = None if draft_vocabulary == "map" else options.tokens_per_slot
            if draft_vocabulary == "map":
                draft_model = _map_draft(model, draft, target_model, target)
            else:
                check_same_vocabulary(target, draft, target_model.vocab_size, model.vocab_size)
                draft_model = model
    most_lanes = num_lanes if isinstance(target_model, LocalTarget) else MOST_LANES
    num_lanes, most_lanes = _lanes(options, num_lanes, most_lanes)
    return Parts(target_model, draft_model, drafter_name, max_model_len, num_lanes, None, grammars, most_lanes)


def _lanes(options: EngineOptions, least: int, most: int) -> tuple[int, int]:
    """Return the fewest and the most lanes of an engine: as many as are asked for, if any."""
    return (options.num_lanes or least, options.num_lanes or max(least, most))


def _load_draft_model(
    path: str, target: Target, options: EngineOptions, max_model_len: int, device: Device, dtype: DType
) -> LanguageModel:
    draft = load_checked(path, device, dtype)
    _refuse_unfused(draft, path, options)
    window = _settle_draft_window(options.draft_window, draft, options.slots, max_model_len)
    if window and draft.fused is not None:
        draft.fused.window = Window(window, _NUM_FIRST)
        _log.info("the draft sees the last %d positions of a row, and the first %d", window, _NUM_FIRST)
    return draft


def _refuse_unfused(model: Target, path: str, options: EngineOptions) -> None:
    """Raise ValueError if fused layers are required, and the model's do not run so, or are not recorded on a GPU."""
    if model.fallback or not model.facts()["fused"]:
        why = model.fallback or "no family that runs fused on this device is its own (docs/models.md)"
        options.refuse_slow(path, why)


def _settle_draft_window(wanted: int | None, draft: LanguageModel, num_slots: int, max_model_len: int) -> int:
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


def _map_draft(draft: LanguageModel, draft_path: str, target: Target, target_path: str) -> LanguageModel:
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
    if share < _LEAST_SHARE:
        raise ValueError(
            f"the draft {draft_path!r} has {described}, expected at least {_LEAST_SHARE:.0%}: it could hardly help; "
            "use a draft of the target's own family, or a draft head"
        )
    _log.info("the draft %r has %s", draft_path, described)
    draft.vocabulary_map = vocabulary
    return draft


def _text_of(target: Target) -> list[int]:
    """Return tokens that the target writes at temperature 1, as texts of their own: always the same."""
    num_tokens = min(_NUM_TOKENS, (target.max_positions or _NUM_TOKENS + 2) - 2)
    first = sorted(target.eos_token_ids)[:1] or [0]  # behind the end of a text another one begins
    try:
        texts = drawn(target, first * _NUM_ROWS, num_tokens + 1)
    finally:
        target.release()
    return [token_id for text in texts for token_id in text[1:]]


def _load_head(path: str, target: Target, target_path: str, options: EngineOptions) -> Draft:
    if options.draft_window:
        raise ValueError(
            f"engine.draft_window is {options.draft_window}, but {path!r} is a draft head, which has no such window; "
            "leave draft_window out"
        )
    if path == OWN_HEAD:
        return attach_own(target, target_path)
    return attach_assistant(path, target, target_path) if is_assistant(path) else attach(path, target, target_path)
