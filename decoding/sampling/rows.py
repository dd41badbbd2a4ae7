"""Rows: the running sequences of one round, as the engine passes them to drafter and sampler.

Row b is in slot b of every cache. Shapes: B rows, K drafted tokens, J positions, L tokens so far.
"""

from collections.abc import Callable
from collections.abc import Sequence as Seq
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import NamedTuple

import torch

from decoding.choices import Verification
from decoding.cpu.picks import PickInputs as CpuInputs
from decoding.cpu.picks import pick as pick_on_cpu
from decoding.device import to_device
from decoding.gpu.pick_table import PickTable
from decoding.gpu.picks import Counted
from decoding.gpu.picks import PickInputs as GpuInputs
from decoding.gpu.picks import pick as pick_on_gpu
from decoding.grammar.matcher import Matcher
from decoding.picked import Picks
from decoding.sampling.distribution import SamplingBatch, shape_logits
from decoding.sampling.masks import TokenMasks
from decoding.sampling.picks import RoundNoise, pick_tokens
from decoding.sampling.token_history import TokenCounts, TokenHistory
from decoding.sampling.verdicts import Draft, Verdicts
from decoding.sequence import Sequence


class Drawn(NamedTuple):
    """The tokens of one step of a draft, for N rows."""

    token_ids_N: torch.Tensor
    is_finite_N: torch.Tensor  # whether a token could be drawn
    is_sound_N: torch.Tensor  # whether the draft's own logits are numbers, whatever is forbidden
    probs_NV: torch.Tensor | None = None  # what each token was drawn from; None: this rule does not ask


@dataclass(frozen=True)
class Rule:
    """How drafted tokens are drawn and judged, with the functions of `rules.py`."""

    name: Verification
    # Whether a draft states what its tokens were drawn from. Then another draft would make another text.
    text_depends_on_draft: bool
    draw: "Callable[[Rows, torch.Tensor, torch.Tensor, Seq[int], int], Drawn]"
    judge: "Callable[[Rows, Draft, torch.Tensor, float, TokenMasks | None], Verdicts]"


class ExtensionLimit(NamedTuple):
    """How far a lookup may extend what a draft model drafted."""

    max_tokens: int
    min_survival: float  # least chance that the last token is accepted if the model's are; below it nothing pays


@dataclass(frozen=True)
class Rows:
    """The rows of one round. They live as long as the round: nothing is committed to their sequences meanwhile."""

    sequences: tuple[Sequence, ...]
    sampling: SamplingBatch
    num_draft_tokens: tuple[int, ...]  # how many tokens each row may draft this round
    rule: Rule
    # For a drafter that has both a draft model and a lookup:
    uses_lookup: tuple[bool, ...] = ()  # whether a row takes what was looked up
    extension_limits: tuple[ExtensionLimit, ...] = ()  # what may be looked up behind the model's tokens
    # For a draft model that knows it: the least chance that a token and all before it are accepted with which it pays.
    min_survival: float = 0.0
    # Shared by the round's rows and parts of them, so that the drafter and the verifier draw their noise once.
    round_noise: RoundNoise | None = field(default=None, compare=False)
    # For penalties on a GPU, of all rounds; without it a round counts the tokens of its rows anew.
    token_counts: TokenCounts | None = field(default=None, compare=False)
    # The masks of the only question that will be asked, where they are known before it is.
    known_masks: TokenMasks | None = None

    def take(self, rows: Seq[int]) -> "Rows":
        if list(rows) == list(range(len(self.sequences))):
            return self
        return Rows(
            tuple(self.sequences[row] for row in rows),
            self.sampling.take(rows),
            tuple(self.num_draft_tokens[row] for row in rows),
            self.rule,
            tuple(self.uses_lookup[row] for row in rows if self.uses_lookup),
            tuple(self.extension_limits[row] for row in rows if self.extension_limits),
            self.min_survival,
            self._round_noise.take(rows),
            self.token_counts,
        )

    def limited(self, may_draft: Seq[bool]) -> "Rows":
        """Return the same rows, of which only some may draft."""
        limits = tuple(limit if may else 0 for limit, may in zip(self.num_draft_tokens, may_draft, strict=True))
        if self.sampling.table is not None and not self.rule.text_depends_on_draft:
            return replace(self, num_draft_tokens=limits)  # a GPU's kernels draw their noise themselves
        return replace(self, num_draft_tokens=limits, round_noise=self._round_noise)

    def positions(self, first: int, num_positions: int) -> torch.Tensor:
        """Return the positions [B, J] of tokens to come: those from `len(sequence) + first` on."""
        return self._lengths_B[:, None] + torch.arange(first, first + num_positions, device=self._lengths_B.device)

    def history(self, drafted_BK: torch.Tensor, first: int, num_positions: int) -> TokenHistory:
        """Return the tokens before each of those positions, the drafted tokens included."""
        positions_BJ = self.positions(first, num_positions)
        if not self.sampling.reads_tokens:
            return TokenHistory(drafted_BK[:, :0], self._prompt_lengths_B, positions_BJ)
        num_drafted = drafted_BK.shape[1]
        token_ids_BL = torch.nn.functional.pad(self._token_ids_BL, (0, num_drafted))
        index_BK = self._lengths_B[:, None] + torch.arange(num_drafted, device=drafted_BK.device)
        return TokenHistory(token_ids_BL.scatter_(1, index_BK, drafted_BK), self._prompt_lengths_B, positions_BJ)

    @cached_property
    def matchers(self) -> dict[int, Matcher]:
        """The matchers of the rows whose output has a grammar."""
        return {row: each.matcher for row, each in enumerate(self.sequences) if each.matcher is not None}

    @cached_property
    def have_grammars(self) -> bool:
        """Whether the output of any row has a grammar."""
        return bool(self.matchers)

    @property
    def have_limits(self) -> bool:
        """Whether something beside the logits may leave no token at a position: a grammar, allowed ids or bad words."""
        return self.have_grammars or self.sampling.forbidden is not None

    @cached_property
    def masked_first(self) -> frozenset[int]:
        """The rows whose masks are needed before a token is picked.

        A cut is made among the tokens that the grammar allows, and rejection needs their probabilities. Of a row whose
        pick was just forbidden the next one probably is, too.
        """
        if not self.matchers:
            return frozenset()
        strays = {
            row
            for row, matcher in self.matchers.items()
            if len(self.sequences[row].output_token_ids) < matcher.masks_first_until
        }
        return self.need_masks | strays

    @cached_property
    def need_masks(self) -> frozenset[int]:
        """The rows whose tokens cannot be picked without masks."""
        if self.rule.text_depends_on_draft:
            return frozenset(self.matchers)
        cut = {row for kind in self.sampling.kinds if kind.cuts_any for row in kind.rows}
        return frozenset(self.matchers.keys() & cut)

    @cached_property
    def checked_later(self) -> tuple[int, ...]:
        """The rows of which the grammar is asked about the picked tokens alone (`judging.judge`)."""
        return tuple(row for row in self.matchers if row not in self.masked_first)

    def only_allowed(
        self, picks: Picks, logits_N1V: torch.Tensor, drafted_NK: torch.Tensor, may_draft: Seq[bool]
    ) -> Picks:
        """Return picks [N, 1] behind `drafted_NK`, those anew that a grammar forbids to a row that may draft."""
        picked, drafted = picks.token_ids_BJ[:, 0].tolist(), drafted_NK.tolist()
        wrong = [
            row
            for row, matcher in self.matchers.items()
            if may_draft[row] and not matcher.allows(self.sequences[row].output_token_ids, [*drafted[row], picked[row]])
        ]
        if not wrong:
            return picks
        wrong_M, first = to_device(wrong, drafted_NK.device), drafted_NK.shape[1]
        part, before_MK = self.take(wrong), drafted_NK[wrong_M]
        again = part.pick(part.masked(logits_N1V[wrong_M], before_MK, first), before_MK, first)
        return picks.replaced(wrong_M, again)

    def masks(
        self,
        drafted_BK: torch.Tensor,
        first: int,
        num_positions: int,
        num_drafted: torch.Tensor | Seq[int] | None = None,
    ) -> TokenMasks | None:
        """Return the masks of the rows' grammars at the J positions from `first` on; None if no row has a grammar.

        `drafted_BK` are the tokens before the positions. Of a row, one position more than its `num_drafted` has a
        meaning (None: all have), and nothing is masked at the others.
        """
        if self.known_masks is not None or not self.have_grammars:
            return self.known_masks
        counts = num_drafted.tolist() if isinstance(num_drafted, torch.Tensor) else num_drafted
        return TokenMasks.of(self.sequences, drafted_BK.tolist(), first, num_positions, counts)

    def masked(
        self,
        logits_BJV: torch.Tensor,
        drafted_BK: torch.Tensor,
        first: int,
        num_drafted: torch.Tensor | Seq[int] | None = None,
    ) -> torch.Tensor:
        """Return the logits [B, J, V] with -inf for the tokens that the rows' grammars do not allow (`masks`).

        Without a grammar, and where everything is allowed, this is the argument itself.
        """
        masks = self.masks(drafted_BK, first, logits_BJV.shape[1], num_drafted)
        return logits_BJV if masks is None else masks.apply(logits_BJV)

    def pick(
        self,
        logits_BJV: torch.Tensor,
        drafted_BK: torch.Tensor,
        first: int,
        margin: float = 0.0,
        masks: TokenMasks | None = None,
    ) -> Picks:
        """Pick under the shared noise at the J positions from `first` on; `drafted_BK` are the tokens before them.

        Only what `masks` allows is picked.
        """
        num_positions, vocab_size = logits_BJV.shape[1:]
        if self.sampling.table is not None and not (margin and self.sampling.cuts):  # kernels know no borders of cuts
            if masks is not None:
                logits_BJV = masks.apply(logits_BJV)
            if self.sampling.forbidden is not None:  # which the kernels do not know
                history = self.history(drafted_BK, first, num_positions)
                logits_BJV = self.sampling.forbidden.apply(logits_BJV, history)
            inputs = self._gpu_inputs(self.sampling.table, vocab_size, drafted_BK)
            return pick_on_gpu(logits_BJV, inputs, first)
        shaped_BJV = logits_BJV
        if self.sampling.shapes:
            shaped_BJV = shape_logits(logits_BJV, self.sampling, self.history(drafted_BK, first, num_positions))
        if shaped_BJV.device.type == "cpu" and not self.sampling.cuts:  # of which the kernel knows nothing
            sampling, masked = self.sampling, () if masks is None or not masks.rows else (masks.packed_RJW, masks.rows)
            cpu_inputs = CpuInputs(
                sampling.temperature_B, sampling.samples_B, sampling.keys_B, self._lengths_B, *masked
            )
            picked = pick_on_cpu(shaped_BJV, cpu_inputs, first)
            if picked is not None:
                return picked
        if masks is not None:
            shaped_BJV = masks.apply(shaped_BJV)
        noise = self._round_noise.of(vocab_size, first, num_positions) if self.sampling.samples else None
        return pick_tokens(shaped_BJV, self.sampling, noise, margin)

    def _gpu_inputs(self, table: PickTable, vocab_size: int, drafted_BK: torch.Tensor) -> GpuInputs:
        if any(table.uses_counts) and vocab_size not in self._counted:
            counts = self.token_counts or TokenCounts(len(self.sequences), table.columns_BC.device)
            self._counted[vocab_size] = counts.of(self.sequences, table.uses_counts, vocab_size)
        biases_RV, counted = table.biases_of(vocab_size), self._counted.get(vocab_size)
        return GpuInputs(table, biases_RV, self._lengths_B, drafted_BK, counted)

    @cached_property
    def _counted(self) -> dict[int, Counted]:
        """The counts of the rows' committed tokens, by the size of the vocabulary."""
        return {}

    @cached_property
    def _round_noise(self) -> RoundNoise:
        if self.round_noise is not None:
            return self.round_noise
        width = max(self.num_draft_tokens, default=0) + 1
        return RoundNoise(self.sampling.keys_B, self.positions(0, width))

    @cached_property
    def _lengths_B(self) -> torch.Tensor:
        return to_device([len(sequence) for sequence in self.sequences], self.sampling.keys_B.device)

    @cached_property
    def _prompt_lengths_B(self) -> torch.Tensor:
        return to_device([len(sequence.prompt_token_ids) for sequence in self.sequences], self.sampling.keys_B.device)

    @cached_property
    def _token_ids_BL(self) -> torch.Tensor:
        width = max(len(sequence) for sequence in self.sequences)
        padded = [sequence.token_ids + [0] * (width - len(sequence)) for sequence in self.sequences]
        return to_device(padded, self.sampling.keys_B.device)


def sampling_batch(
    sequences: tuple[Sequence, ...], eos_token_ids: frozenset[int], device: torch.device
) -> SamplingBatch:
    """Return the sampling parameters of these sequences as tensors."""
    for sequence in sequences:
        assert sequence.matcher is not None or sequence.params.structured is None, "its grammar would be ignored"
    return SamplingBatch.build(
        params=[s.params for s in sequences],
        keys=[s.noise_key for s in sequences],
        stop_ids=[s.stop_ids(eos_token_ids) for s in sequences],
        prompt_lengths=[len(s.prompt_token_ids) for s in sequences],
        device=device,
    )
