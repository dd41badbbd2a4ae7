"""The vocabulary of a head that drafts some of its target's tokens only.

D tokens that the head knows, V of the target. `d2t` holds offsets: token i of the head is token i + d2t[i] of the
target. `t2d` marks the tokens of the target that the head knows, so it follows from `d2t`.
"""

import torch


def target_ids(d2t_D: torch.Tensor, vocab_size: int) -> torch.Tensor:
    """Return the target's id of each token of the head, int64 [D].

    Raises ValueError, with a message that begins with a verb, if an id is not one of the target's or comes twice.
    """
    ids_D = d2t_D.to(torch.int64) + torch.arange(len(d2t_D))
    foreign = ((ids_D < 0) | (ids_D >= vocab_size)).nonzero()
    if len(foreign):
        first = int(foreign[0, 0])
        raise ValueError(
            f"maps token {first} of its vocabulary to token {int(ids_D[first])} of a target with {vocab_size}, by d2t; "
            "copy or download it again, or its d2t holds ids where offsets are expected"
        )
    counts_V = torch.bincount(ids_D, minlength=vocab_size)
    if (counts_V > 1).any():
        raise ValueError(
            f"maps {int(counts_V.max())} tokens of its vocabulary to token {int(counts_V.argmax())} of its target, by "
            "d2t; copy or download it again, or its d2t holds ids where offsets are expected"
        )
    return ids_D


def offsets(target_ids_D: torch.Tensor) -> torch.Tensor:
    """Return `d2t` [D] for the target's ids of a head's tokens: what `target_ids` reads."""
    return target_ids_D.to(torch.int64) - torch.arange(len(target_ids_D))


def membership(target_ids_D: torch.Tensor, vocab_size: int) -> torch.Tensor:
    """Return `t2d`, bool [V]: whether a head knows each token of the target."""
    return torch.zeros(vocab_size, dtype=torch.bool).index_fill(0, target_ids_D, True)


def check_membership(t2d_V: torch.Tensor, target_ids_D: torch.Tensor) -> None:
    """Raise a ValueError, with a message that begins with a verb, if `t2d` and the ids of `d2t` differ."""
    different = (t2d_V != membership(target_ids_D, len(t2d_V))).nonzero()
    if len(different):
        first = int(different[0, 0])
        says = "has" if t2d_V[first] else "lacks"
        raise ValueError(
            f"contradicts itself: {says} token {first} of its target by t2d and not by d2t ({len(different)} such "
            "tokens); copy or download it again"
        )
