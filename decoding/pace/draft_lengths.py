"""best_lengths: how many tokens each row drafts, and from which source, for the most expected tokens a second.

A round yields one token a row, plus each drafted token that is accepted. The survival of a token is the chance that it
and all before it are accepted. It only falls within a row, so of any number of draft tokens the ones with the highest
survival are the best, and they never include a row's later token without its earlier ones (TETRIS, arXiv 2502.15197;
TurboSpec, arXiv 2406.14066). Costs that depend on the depth rather than on the number of tokens (draft steps, the width
of verification) are handled by trying every depth, of the long ones every eighth.

Shapes: B rows, K draft positions, N tokens that could be drafted (most likely first), C pairs of depths.
"""

from collections.abc import Sequence as Seq
from dataclasses import dataclass, replace
from functools import lru_cache

import numpy as np
import numpy.typing as npt

from decoding.pace.cost_table import CostTable
from decoding.sampling.rows import ExtensionLimit

Floats = npt.NDArray[np.float64]
_GAIN = 1.03  # times the speed of a round without drafts: a draft model is used where it is expected to bring more
_EVERY_DEPTH = 16  # up to which each is tried


@dataclass(frozen=True)
class DraftPlan:
    """The draft of each row in a round."""

    lengths: tuple[int, ...]
    uses_lookup: tuple[bool, ...]  # whether the row takes what was looked up rather than draft with the model
    speed: float = 0.0  # expected tokens a second
    extension_limits: tuple[ExtensionLimit, ...] = ()  # what a lookup may add behind a row's model tokens
    min_survival: float = 0.0  # least chance that a token and all before it are accepted with which it pays

    @classmethod
    def nothing(cls, num_rows: int, speed: float = 0.0) -> "DraftPlan":
        return cls((0,) * num_rows, (False,) * num_rows, speed)

    @property
    def lengths_by_model(self) -> tuple[int, ...]:
        """The tokens of each row that a model drafts."""
        if not any(self.uses_lookup):
            return self.lengths
        return tuple(0 if up else length for up, length in zip(self.uses_lookup, self.lengths, strict=True))

    def of_model(self, num_drafted: Seq[int], num_accepted: Seq[int]) -> tuple[Seq[int], Seq[int]]:
        """Return both counts for the draft model alone: up to the planned length of rows that did not look up."""
        if not any(self.uses_lookup) and not self.extension_limits:
            return num_drafted, num_accepted
        drafted, accepted = (list(map(min, counts, self.lengths_by_model)) for counts in (num_drafted, num_accepted))
        return drafted, accepted

    def replaced(self, lengths: Seq[int]) -> "DraftPlan":
        """Return the plan in which the rows with a length here look up as many tokens; 0 leaves a row as it is."""
        nothing_behind = ExtensionLimit(0, 1.0)
        return replace(
            self,
            lengths=tuple(new or old for new, old in zip(lengths, self.lengths, strict=True)),
            uses_lookup=tuple(new > 0 or old for new, old in zip(lengths, self.uses_lookup, strict=True)),
            extension_limits=tuple(
                nothing_behind if new else old for new, old in zip(lengths, self.extension_limits, strict=False)
            ),
        )


def best_lengths(by_model_BK: Floats | None, by_lookup_BK: Floats | None, costs: CostTable, num_rows: int) -> DraftPlan:
    """Find the best plan, given each row's survival by draft position and source (0: may not be drafted).

    A row with both sources takes the one with more expected tokens at the depths tried. Given the sources, no other
    lengths with these depths yield more tokens a second, but a model drafts only where that is `_GAIN` times as fast as
    without: of plans that look a little faster, most are those whose chances or times are estimated too well.
    """
    like_BK = next(s_BK for s_BK in (by_model_BK, by_lookup_BK) if s_BK is not None)
    num_positions = like_BK.shape[1]
    survival_SBK = np.zeros((2, num_rows, num_positions))
    for source, survival_BK in enumerate((by_model_BK, by_lookup_BK)):
        if survival_BK is not None:
            survival_SBK[source] = survival_BK
    if costs.block_tokens:
        survival_SBK[0, :, costs.block_tokens :] = 0.0
    target_seconds = costs.target_by_tokens(num_rows * (1 + num_positions))
    round_seconds, position_seconds = costs.round_seconds, costs.position_seconds
    nothing = DraftPlan.nothing(num_rows, num_rows / costs.of_round(num_rows, 0))
    order_N = np.argsort(-survival_SBK, axis=None, kind="stable")[: np.count_nonzero(survival_SBK)]
    if not len(order_N):
        return nothing

    source_N, row_N, position_N = np.unravel_index(order_N, survival_SBK.shape)
    survival_N = survival_SBK.ravel()[order_N]
    most_steps = int(np.count_nonzero(survival_SBK[0].any(axis=0)))
    steps_C, width_C = _depths(num_positions, most_steps, by_lookup_BK is not None)
    expected_SBJ = np.zeros((2, num_rows, num_positions + 1))
    survival_SBK.cumsum(2, out=expected_SBJ[:, :, 1:])
    uses_lookup_BC = expected_SBJ[1][:, width_C] > expected_SBJ[0][:, steps_C]
    depth_SC = np.stack([steps_C, width_C])
    may_CN = (position_N < depth_SC[source_N].T) & (source_N == uses_lookup_BC[row_N].T)
    num_steppers_C = ((survival_SBK[0, :, :1] > 0) & ~uses_lookup_BC).sum(0)

    tokens_CN = may_CN.cumsum(1)
    expected_CN = num_rows + (may_CN * survival_N).cumsum(1)
    forwards_C = np.minimum(steps_C, 1) if costs.block_tokens else steps_C
    drafting_C = forwards_C * costs.draft_by_rows(num_rows)[num_steppers_C] + costs.draft_round_seconds * (steps_C > 0)
    verifying_CN = target_seconds[num_rows + tokens_CN]
    verifying_CN = verifying_CN + (round_seconds + position_seconds * num_rows * (1 + width_C))[:, None]
    if not costs.is_overlapped:
        drafting_C = drafting_C + position_seconds * steps_C * num_steppers_C
    seconds_CN = verifying_CN + drafting_C[:, None]  # as in `CostTable.of_round`
    chain_CN = costs.chain_by_tokens(num_rows * (1 + num_positions))[num_rows + tokens_CN]
    whole_CN = seconds_CN + chain_CN + costs.trip_seconds * (steps_C > 0)[:, None]
    if costs.is_overlapped:
        seconds_CN = np.maximum(verifying_CN, drafting_C[:, None])
    speed_CN = expected_CN / np.maximum(seconds_CN, whole_CN / costs.num_lanes)
    weighed_CN = speed_CN / np.where(steps_C > 0, _GAIN, 1.0)[:, None]
    best_c, best_n = np.unravel_index(weighed_CN.argmax(), speed_CN.shape)
    if weighed_CN[best_c, best_n] <= nothing.speed:
        return nothing
    chosen_N = may_CN[best_c, : best_n + 1]
    lengths_B = np.bincount(row_N[: best_n + 1][chosen_N], minlength=num_rows)
    return DraftPlan(
        tuple(lengths_B.tolist()), tuple(uses_lookup_BC[:, best_c].tolist()), float(speed_CN[best_c, best_n])
    )


@lru_cache(maxsize=64)
def _depths(num_positions: int, most_steps: int, has_lookup: bool) -> tuple[npt.NDArray[np.int64], ...]:
    """Return the numbers [C] of draft steps, up to `most_steps`, and the longest drafts [C] to try.

    Without a lookup the two are equal.
    """
    steps_C, width_C = np.triu_indices(num_positions + 1)
    is_tried_C = (has_lookup | (steps_C == width_C)) & (steps_C <= most_steps)
    is_tried_C &= (width_C <= _EVERY_DEPTH) | (width_C % 8 == 0) | (width_C == num_positions) | (steps_C == width_C)
    return steps_C[is_tried_C], width_C[is_tried_C]


def cut(survival_BK: Floats, limits: Seq[int]) -> Floats:
    """Set the survival to 0 where a row may not draft."""
    return np.where(np.arange(survival_BK.shape[1]) < np.array(limits)[:, None], survival_BK, 0.0)


def with_extensions(survival_BK: Floats, extension_gain: float) -> Floats:
    """Return what each of the model's tokens adds to the expected tokens, if an extension behind the last gains this.

    A first token adds itself and its extension. A later one adds less, since the extension is then reached less often.
    """
    before_BK = np.concatenate([np.zeros_like(survival_BK[:, :1]), survival_BK[:, :-1]], axis=1)
    added_BK = survival_BK + extension_gain * (survival_BK - before_BK) * (survival_BK > 0)
    falling_BK: Floats = np.minimum.accumulate(added_BK.clip(min=0.0), axis=1)
    return falling_BK


def extension_limits(plan: DraftPlan, limits: Seq[int], survival_BK: Floats) -> tuple[ExtensionLimit, ...]:
    """Limit the looked-up extensions to tokens that earn the time which they add to verification."""
    return tuple(
        ExtensionLimit(limit - length, plan.min_survival / survival_K[length - 1])
        if length and not up
        else ExtensionLimit(0, 1.0)
        for limit, length, up, survival_K in zip(limits, plan.lengths, plan.uses_lookup, survival_BK, strict=True)
    )
