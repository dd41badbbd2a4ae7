"""What the tests of drafters with heads have in common: an engine, its prompts, and what the target hands out."""

import torch

from decoding import Engine, EngineOptions
from tests.decoding.tiny import random_prompts

SHARED = [7, 3, 9, 1, 4, 4, 8, 2]
PROMPTS = [*random_prompts([9, 1, 5, 17, 2]), SHARED, [*SHARED, 11], [*SHARED, 12, 13], SHARED, [5]]


def engine_over(target, drafter, *, num_slots: int = 3, num_drafted: int = 3, **options) -> Engine:
    settings = EngineOptions(num_slots=num_slots, num_speculative_tokens=num_drafted, max_model_len=80, **options)
    return Engine([(target, drafter)], settings, 80)


def features_of(target, token_ids: list[int], layer_ids: tuple[int, ...]) -> torch.Tensor:
    """What enters these layers, by transformers' own code; of the last id that is what the final norm reads."""
    kept = []
    norm = target.network.model.norm.register_forward_pre_hook(lambda _, args: kept.append(args[0]))
    with torch.inference_mode():
        states = target.network(torch.tensor([token_ids]), output_hidden_states=True, use_cache=False).hidden_states
    norm.remove()
    streams = [*states[:-1], kept[0]]
    return torch.cat([streams[k][0] for k in layer_ids], dim=-1)


class Watched:
    """Beside a drafter, notes what it drafts for which text, and how many tokens it may."""

    def propose(self, rows):
        draft = super().propose(rows)
        lengths = draft.num_draft_tokens_B.tolist()
        self.seen += [
            (list(row.token_ids), tokens[:length], limit)
            for row, tokens, length, limit in zip(
                rows.sequences, draft.token_ids_BK.tolist(), lengths, self.limits, strict=True
            )
            if limit
        ]
        return draft

    def _limits(self, rows):
        self.limits = super()._limits(rows)
        return self.limits
