"""A token's numbers are the same bits whatever runs beside it, on each of three ranks that share a model out.

That shares compute what whole layers do is shown faster over two ranks (`tests/decoding/checkpoint/test_rank.py`).
"""

import sys
from typing import Any

import pytest
import torch

from decoding.gpu.available import is_interpreted
from decoding.network.language_model import LanguageModel
from decoding.network.stage import Stage
from tests.decoding.ranks.processes import NUM_RANKS, join_ranks, leave_ranks, run_ranks
from tests.decoding.tiny import build, llama_config, random_prompts, save

pytestmark = pytest.mark.slow

HEADS = {"num_attention_heads": 6, "num_key_value_heads": 3, "head_dim": 16}
# The vocabulary does not divide by 3, and the padding's token is none of the first ranks' tokens.
SIZES = {**HEADS, "hidden_size": 96, "vocab_size": 50, "pad_token_id": 49, "attention_bias": True, "mlp_bias": True}
PROMPTS = random_prompts((20, 7, 1, 13), seed=1)
TOKENS_BT = torch.randint(48, (4, 4), generator=torch.Generator().manual_seed(2))


def main(port: str, folder: str, rank: int, path: str) -> None:
    """One of the ranks; what it found is left in a file."""
    join_ranks(port, rank)
    found: dict[str, Any] = {}
    with torch.inference_mode():
        for dtype in ("float32", "bfloat16"):
            stage = Stage.load(path, 0, 1, "cpu", dtype, NUM_RANKS)
            stage.exact = "on"
            stage.speed_up()
            beside, alone = logits_of(stage, range(4), 4), [logits_of(stage, [row], 1)[0] for row in range(4)]
            is_invariant = stage.is_batch_invariant
            stage.slow_down("it deviates")
            found[dtype] = is_invariant, beside, torch.stack(alone), logits_of(stage, range(4), 4)
    leave_ranks(folder, rank, found)


def logits_of(stage: Stage, rows: list[int], num_at_once: int) -> torch.Tensor:
    """Logits [B, T, V] of the tokens of these rows, some of each in a forward, behind their prompts."""
    stage.allocate(4, 60)
    lengths = [len(PROMPTS[row]) for row in rows]
    stage.forward(torch.tensor([token for row in rows for token in PROMPTS[row]]), [0] * len(rows), lengths)
    found = []
    for first in range(0, 4, num_at_once):
        fed_BT, every = TOKENS_BT[list(rows), first : first + num_at_once], torch.arange(num_at_once)
        starts = [length + first for length in lengths]
        of_rows = [num_at_once] * len(rows), every.expand(len(rows), -1)
        found.append(stage.forward(fed_BT.flatten(), starts, *of_rows).clone())
    return torch.cat(found, dim=1)


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> str:
    model = build(llama_config(**SIZES), seed=1)
    for name, parameter in model.named_parameters():
        if name.endswith(".bias"):
            torch.nn.init.normal_(parameter)
    return save(model, tmp_path_factory.mktemp("model"))


@pytest.fixture(scope="module")
def found(path: str, tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    """What each rank found."""
    return run_ranks("tests.decoding.ranks.test_shares", tmp_path_factory.mktemp("found"), path)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_row_beside_others_has_the_bits_that_it_has_alone_on_every_rank(
    dtype: str, path: str, found: list[dict[str, Any]]
) -> None:
    whole = LanguageModel.load(path, "cpu", dtype)
    whole.exact = "on"
    whole.speed_up()
    whole.allocate(4, 60)
    whole.prefill(range(4), PROMPTS)
    expected = whole.forward([len(row) for row in PROMPTS], TOKENS_BT, torch.arange(4).expand(4, -1))
    for of_rank in found:
        is_invariant, beside, alone, slow = of_rank[dtype]
        assert is_invariant == whole.is_batch_invariant
        assert torch.equal(beside, found[0][dtype][1])
        if is_invariant or is_interpreted():
            assert torch.equal(beside, alone)
        most = {"float32": 1e-5, "bfloat16": 5e-2}[dtype] * expected.abs().max()
        assert (beside - expected).abs().max() < most
        assert (slow - expected).abs().max() < most, "transformers' code over the shares"


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]), sys.argv[4])
