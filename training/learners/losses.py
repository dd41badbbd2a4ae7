"""Losses of a draft against its target, in float32, for each token.

kl      KL(p || q), p the target's distribution and q the draft's; zero where they are equal
ce      -log q of the token that the text has: what learning needs that knows no target
tv      the total variation, 1/2 sum |p - q|: the share of tokens that rejection sampling refuses
kl_tv   kl, and tv at the end of training, when q is near p: tv alone teaches a draft that is far off next to nothing

Both distributions are those at the temperature that the text was drawn at; cuts such as top-p are left out. Greedy
texts are taught at temperature 1, since a distribution with a single token tells nothing about the others.

Source of tv and kl_tv: "LK losses", arXiv 2602.23881.

Shapes: N tokens, V vocabulary of the target, D vocabulary of the draft.
"""

from dataclasses import dataclass

import torch

from training.learners.loss_names import LossName as LossName

_TV_FROM = 0.8  # of the training


@dataclass(frozen=True)
class TargetLaw:
    """What the target says about some tokens, over the tokens that the draft knows."""

    log_probs_ND: torch.Tensor  # renormalized over the D tokens
    best_N: torch.Tensor  # the target's most likely token, by its id there
    outside_N: torch.Tensor  # probability of all tokens that the draft does not know

    @classmethod
    def of(
        cls, logits_NV: torch.Tensor, temperatures_N: torch.Tensor, target_ids_D: torch.Tensor | None = None
    ) -> "TargetLaw":
        """Read the target's logits; `target_ids_D` are the ids of the draft's tokens, None if it knows all of them."""
        best_N = logits_NV.argmax(-1)
        scaled_NV = scaled(logits_NV, temperatures_N)
        if target_ids_D is None:
            log_probs_NV = scaled_NV.log_softmax(-1)
            return cls(log_probs_NV, best_N, torch.zeros_like(log_probs_NV[:, 0]))
        inside_ND = scaled_NV[:, target_ids_D]
        inside_N = (inside_ND.logsumexp(-1) - scaled_NV.logsumexp(-1)).exp()
        return cls(inside_ND.log_softmax(-1), best_N, 1 - inside_N)


def scaled(logits_NV: torch.Tensor, temperatures_N: torch.Tensor) -> torch.Tensor:
    """Return float32 logits, each row over its temperature, where a greedy one counts as 1."""
    divisors_N = torch.where(temperatures_N > 0, temperatures_N, 1.0)
    return logits_NV.float() / divisors_N[:, None]


def token_losses(
    name: LossName, scaled_ND: torch.Tensor, law: TargetLaw, token_ids_N: torch.Tensor, progress: float
) -> torch.Tensor:
    """Return the loss of each token, [N]; `progress` goes from 0 to 1 over the training.

    `scaled_ND` are the draft's logits over their temperatures. `token_ids_N` are the text's tokens among the D, with -1
    for those that the draft does not know, of which cross entropy teaches nothing.
    """
    log_probs_ND = scaled_ND.log_softmax(-1)
    if name == "ce":
        own_N1 = log_probs_ND.gather(-1, token_ids_N.clamp(min=0)[:, None])
        return torch.where(token_ids_N >= 0, -own_N1[:, 0], 0.0)
    taught_ND = law.log_probs_ND
    if name == "tv" or (name == "kl_tv" and progress >= _TV_FROM):
        return (taught_ND.exp() - log_probs_ND.exp()).abs().sum(-1) / 2
    # Where the target's probability is 0 its logarithm is -inf, and 0 * -inf is no number.
    return torch.where(taught_ND > float("-inf"), taught_ND.exp() * (taught_ND - log_probs_ND), 0.0).sum(-1)
