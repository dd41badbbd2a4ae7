"""Pair: a target and a draft as the engine loads them, reading texts that are written already, and their round seconds.

Shapes: T tokens of a text, N of them the output's, P pairs of a token and the features before it, V vocabulary of the
target, D of the head, X any number of features.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch

from decoding.cache.features import FeatureTap
from decoding.checkpoint.loading import DType
from decoding.device import Device, to_device
from decoding.engine.engine import Engine
from decoding.engine.load import load_parts
from decoding.engine.options import EngineOptions
from decoding.heads.eagle3_head import Eagle3Head
from decoding.heads.format.folder import kind_of_head
from decoding.heads.unrolled import unrolled
from decoding.network.language_model import LanguageModel
from decoding.pace.cost_table import CostTable
from decoding.vocabulary.draft_ids import fitted


@dataclass(frozen=True)
class Reading:
    """What target and draft say about the N output tokens of a text, each given the true tokens before it."""

    target_logits_1NV: torch.Tensor
    first: int  # the first output token for which the draft has logits
    # Of each look-ahead step k, [1, N - k - first, V]: those at j are for output token first + j + k, drafted by a
    # round that begins k tokens before it. A draft model's are the same in each step, so only those of step 0 are here.
    draft_steps: list[torch.Tensor]
    has_all_steps: bool


class Pair:
    """A loaded target with its draft."""

    def __init__(
        self, draft: str, target: str, device: Device, dtype: DType, target_model: LanguageModel | None = None
    ) -> None:
        """Load both as an engine does; `target_model` is the one at `target`, where that is loaded already.

        Raises ValueError for what the engine refuses, and for a draft whose rounds cannot be replayed from texts.
        """
        if (kind := kind_of_head(draft)) not in (None, "eagle3"):
            raise ValueError(
                f"{draft!r} is a head of kind {kind!r}, and only draft models and EAGLE-3 heads can be evaluated on "
                "texts; compare it in a run (engine.draft_length fixed)"
            )
        parts = load_parts(target, draft, EngineOptions(), device, dtype, target_model=target_model)
        assert isinstance(parts.target, LanguageModel)
        assert isinstance(parts.draft, LanguageModel | Eagle3Head), "no other kind of draft came this far"
        self.parts, self.target, self.draft, self.draft_path = parts, parts.target, parts.draft, draft
        if isinstance(parts.draft, Eagle3Head) and len(parts.draft.network.layers) != 1:
            raise ValueError(
                f"{draft!r} is a head of {len(parts.draft.network.layers)} layers, and only heads of one layer can be "
                "evaluated on texts; compare it in a run (engine.draft_length fixed)"
            )

    @property
    def max_drafted_len(self) -> int | None:
        """Tokens of the longest row that is drafted for; None if there is no limit."""
        return self.draft.max_positions

    @torch.inference_mode()
    def read(self, token_ids: Sequence[int], num_output: int, num_steps: int) -> Reading:
        """Read a text of which the last `num_output` tokens are the output."""
        tokens_1T = to_device([list(token_ids[:-1])], self.target.device)  # nothing follows the last one
        if isinstance(self.draft, LanguageModel):
            own = [token if token < self.draft.vocab_size else 0 for token in token_ids[:-1]]
            target_logits_1NV = self.target.plain(tokens_1T[0], num_output)[None]
            draft_logits_NV = self.draft.plain(to_device(own, self.draft.device), num_output)
            return Reading(target_logits_1NV, 0, [fitted(draft_logits_NV, self.target.vocab_size)[None]], False)
        target_logits_1NV, features_1TX = self._with_features(tokens_1T, num_output, self.draft)
        first = max(0, 2 - (len(token_ids) - num_output))  # a row of one token has no pair yet
        steps = list(self._steps(self.draft, tokens_1T, features_1TX, num_output - first, num_steps))
        return Reading(target_logits_1NV, first, steps, True)

    def _with_features(
        self, tokens_1T: torch.Tensor, num_output: int, head: Eagle3Head
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the target's logits behind the last tokens, and what enters the layers that the head reads."""
        kept: list[torch.Tensor] = []
        num_tokens = tokens_1T.shape[1]
        self.target.allocate(1, num_tokens)
        self.target.hand_out(
            FeatureTap(head.layer_ids, lambda stream_NX: stream_NX, lambda *given: kept.append(given[-1]))
        )
        try:
            wanted_1N = torch.arange(num_tokens - num_output, num_tokens, device=tokens_1T.device)[None]
            logits_1NV = self.target.forward([0], tokens_1T, wanted_1N)
        finally:
            self.target.hand_out(None)
            self.target.release()
        return logits_1NV, torch.cat(kept)[None]

    @staticmethod
    def _steps(
        head: Eagle3Head, tokens_1T: torch.Tensor, features_1TX: torch.Tensor, num_output: int, num_steps: int
    ) -> Iterator[torch.Tensor]:
        """Yield the logits [1, N - k, V] of each step k for the last N tokens of a text; one more follows those given.

        At pair p they are for token p + 2 + k.
        """
        for step, logits_1PD in enumerate(unrolled(head.network, tokens_1T, features_1TX, num_steps)):
            if step >= num_output:
                return
            # The last pair's logits are for the token that follows the ones given, which is the output's last.
            yield head.spread(logits_1PD[0, logits_1PD.shape[1] - (num_output - step) :])[None]


@dataclass(frozen=True)
class RoundSeconds:
    """Seconds of a round in which all slots write."""

    plain: float  # without a draft
    drafted: float  # with drafts of the whole length

    def speed_up(self, tokens_a_round: float) -> float:
        """Return how many times as fast rounds with this mean acceptance length write as plain decoding."""
        return tokens_a_round * self.plain / self.drafted


def measure_rounds(pair: Pair, num_draft_tokens: int, num_slots: int) -> RoundSeconds:
    """Measure the costs of a pair as an engine does when it is loaded; what is in the caches is lost."""
    options = EngineOptions(num_speculative_tokens=num_draft_tokens, num_slots=num_slots)
    engine = Engine.over(pair.parts, options)
    try:
        costs = engine.lanes[0].schedule.costs
        assert costs is not None, "drafts adapt by measured costs"
        return round_seconds(costs, num_draft_tokens, num_slots)
    finally:
        for lane in engine.lanes:
            lane.close()
        pair.target.hand_out(None)


def round_seconds(costs: CostTable, num_draft_tokens: int, num_rows: int) -> RoundSeconds:
    """Return what rounds of this many rows take by a cost table."""
    return RoundSeconds(costs.of_round(num_rows, 0), costs.of_round(num_rows, num_draft_tokens))
