"""Texts that the target wrote alone, and where their tokens stand among those that a draft finds best.

Under shared noise a drafted token is accepted if and only if it is the text's own. So the branch of a tree that is
accepted is the text itself, and a draft's logits along the text decide what of any tree would have been accepted.

Shapes: K places of a draft, N output tokens, J of them, V vocabulary.
"""

from collections.abc import Callable, Iterable
from collections.abc import Sequence as Seq
from dataclasses import dataclass, replace
from functools import partial

import numpy as np
import torch

from benchmarks.trees.tree import Ranks, Tree
from decoding import Engine, SamplingParams, Sequence
from decoding.noise import GumbelNoise, Stream
from pipeline.counts import Counts
from training.corpus.rows import Example
from training.evaluation.kind_score import replay
from training.evaluation.pair import Pair
from training.evaluation.score import NoiseOfText

_SEED = 7  # of the demo's noise


def written(engine: Engine, prompts: Iterable[Seq[int]], params: SamplingParams) -> list[Example]:
    """Return what the engine's target writes behind these prompts, as rows of a run in this order."""
    rows = [Sequence.create(prompt, params, run_seed=_SEED, row=row) for row, prompt in enumerate(prompts)]
    list(engine.stream(rows))
    settled = [replace(params, max_tokens=row.max_tokens) for row in rows]
    return [
        Example(row.prompt_token_ids, tuple(row.output_token_ids), "all", row.noise_key, own)
        for row, own in zip(rows, settled, strict=True)
    ]


@dataclass(frozen=True)
class Text:
    """A text beside a draft. Entry [k, s] of the ranks is about token s + k, in a round that begins at token s."""

    token_ids: tuple[int, ...]
    ranks_KN: Ranks  # by the draft's logits with the noise of the text
    plain_ranks_KN: Ranks  # by its logits alone
    replayed: Callable[[list[list[int]]], Counts]  # the rounds that would have written the text with drafts [K, N]

    @classmethod
    @torch.inference_mode()
    def read(cls, pair: Pair, example: Example, num_places: int) -> "Text":
        """Let a target and its draft read an example, for drafts of up to `num_places` tokens."""
        prompt, output = example.prompt_token_ids, example.output_token_ids
        reading = pair.read([*prompt, *output], len(output), num_places)
        noise = NoiseOfText(example, reading.target_logits_1NV, pair.target.eos_token_ids)
        sampling, (_, num_output, vocab_size) = noise.rows.sampling, reading.target_logits_1NV.shape
        noise_NV = torch.zeros(num_output, vocab_size)
        if sampling.samples:
            positions_1N = noise.rows.positions(0, num_output)
            noise_NV = GumbelNoise.draw(sampling.keys_B, positions_1N, vocab_size, Stream.SHARED).dense(vocab_size)[0]
        ranks_2KN = np.full((2, num_places, num_output), vocab_size)
        for step, logits_1JV in enumerate(reading.draft_steps):
            at = reading.first + step
            scores_JV = noise.scores(logits_1JV, at)
            for ranks_KN, scored_JV in zip(ranks_2KN, (scores_JV + noise_NV[at:], scores_JV), strict=True):
                own_J1 = scored_JV.gather(-1, noise.tokens_1N[0, at:, None])
                ranks_KN[step, reading.first : num_output - step] = (scored_JV > own_J1).sum(-1).numpy()
        if not reading.has_all_steps:  # what a draft model says of a token is the same in each round
            for place in range(1, min(num_places, num_output)):
                ranks_2KN[:, place, :-place] = ranks_2KN[:, 0, place:]
        replayed = partial(
            replay,
            output,
            max_tokens=example.params.max_tokens,
            stop_ids=noise.rows.sequences[0].stop_ids(pair.target.eos_token_ids),
            max_drafted_len=num_output if pair.max_drafted_len is None else pair.max_drafted_len - len(prompt),
            first=reading.first,
            close_calls=noise.targets_own(pair.target.close_call)[1],
        )
        return cls(output, ranks_2KN[0], ranks_2KN[1], replayed)

    def rounds(self, tree: Tree, *, with_noise: bool = True) -> Counts:
        """Return the counts of the rounds with drafts of this shape, picked with the noise or without.

        What counts as drafted is the tree's depth.
        """
        has_KN, num_output = tree.has(self.ranks_KN if with_noise else self.plain_ranks_KN), len(self.token_ids)
        drafted_KN = np.full(has_KN.shape, -1)
        for place in range(min(tree.depth, num_output)):
            end = num_output - place
            drafted_KN[place, :end] = np.where(has_KN[place, :end], self.token_ids[place:], -1)
        return replace(self.replayed(drafted_KN.tolist()), num_output_tokens=num_output)
