"""An MTP head as a textbook would write it: one row, no cache, every pair computed anew for each drafted token.

The layers of a module are transformers' own in a plain forward; everything around them is written out. It shares no
code with `decoding/heads`.
"""

import torch

from tests.decoding.heads.mtp.tiny_targets import FAMILIES, Module


class ReferenceHead:
    """A head beside its target, a plain network of transformers."""

    def __init__(self, family: str, modules: list[Module], target) -> None:
        self.family, self.modules, self.target = FAMILIES[family], modules, target

    def norm(self, x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        config = self.target.config
        epsilon = getattr(config, "rms_norm_eps", None) or config.layer_norm_epsilon
        weight = 1 + weight if self.family.multiplies_by_1_and_w else weight
        return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + epsilon) * weight

    def states_of_target(self, tokens: list[int]) -> torch.Tensor:
        """What the first module reads of each token [L, H]."""
        return self._run(self.target, input_ids=torch.tensor([tokens]))

    def _run(self, network, **fed) -> torch.Tensor:
        """The state behind a network's layers: behind its final norm, or before it."""
        base, before = network.base_model, []
        norm = base.norm_f if hasattr(base, "norm_f") else base.norm
        hook = norm.register_forward_pre_hook(lambda _, args: before.append(args[0]))
        normed = base(**fed, use_cache=False).last_hidden_state
        hook.remove()
        return (normed if self.family.reads_normed else before[0])[0]

    def module(self, number: int, tokens: list[int], states: torch.Tensor) -> torch.Tensor:
        """What a module makes of these pairs: a token, and the state at the position before it."""
        module, embeddings = self.modules[number], self.target.get_input_embeddings().weight[tokens]
        both = [self.norm(embeddings, module.embedding_norm), self.norm(states, module.hidden_norm)]
        return self._run(module.network, inputs_embeds=(torch.cat(both, -1) @ module.projection.T)[None])

    def token_behind(self, number: int, state: torch.Tensor) -> int:
        if not self.family.reads_normed:
            state = self.norm(state, self.modules[number].network.base_model.norm.weight)
        return int((self.target.get_output_embeddings().weight @ state).argmax())

    @torch.inference_mode()
    def draft(self, tokens: list[int], states: torch.Tensor, num_tokens: int) -> list[int]:
        """Draft greedily behind `tokens`; the target's states of all but the newest one are given [L - 1, H]."""
        drafted, behind = [], []
        for step in range(num_tokens):
            number = step % len(self.modules)
            if number == 0:  # what was computed behind the last pair stands in for the states of drafted tokens
                states = torch.cat([states, *behind])
                here, behind, known = states, [], [*tokens, *drafted]
            here = self.module(number, [*tokens, *drafted][1 + number : len(known) + number], here)
            behind.append(here[-1:])
            drafted.append(self.token_behind(number, here[-1]))
        return drafted
