"""Sums over three ranks have one order, and a token's numbers are the same bits whatever runs beside it.

With two ranks every order is the same one.
"""

import os
import pickle
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import distributed

from decoding.checkpoint.rank import meet, open_rank_store
from decoding.gpu.available import is_interpreted
from decoding.network.language_model import LanguageModel
from decoding.network.stage import Stage
from decoding.ranks.sums import summed
from tests import interpreter
from tests.decoding.tiny import build, llama_config, random_prompts, save

NUM_RANKS = 3
HEADS = {"num_attention_heads": 6, "num_key_value_heads": 3, "head_dim": 16}
# The vocabulary does not divide by 3, and the padding's token is none of the first ranks' tokens.
SIZES = {**HEADS, "hidden_size": 96, "vocab_size": 50, "pad_token_id": 49, "attention_bias": True, "mlp_bias": True}
PROMPTS = random_prompts((20, 7, 1, 13), seed=1)
TOKENS_BT = torch.randint(48, (4, 4), generator=torch.Generator().manual_seed(2))


def parts_of(num_lines: int, dtype: torch.dtype) -> torch.Tensor:
    """What the ranks have of lines."""
    parts_RNO = torch.randn(NUM_RANKS, 64, 200, generator=torch.Generator().manual_seed(3))
    return parts_RNO[:, :num_lines].to(dtype)


def in_order(parts_RNO: torch.Tensor, bias_O: torch.Tensor, added_NO: torch.Tensor) -> torch.Tensor:
    """The sum that is promised."""
    return (((parts_RNO[0].float() + parts_RNO[1]) + parts_RNO[2]) + bias_O + added_NO).to(parts_RNO.dtype)


def main(rank: int, port: int, path: str, folder: Path) -> None:
    """One of the ranks; what it found is left in a file."""
    torch.set_num_threads(1)
    interpreter.install()
    meet(port, rank, NUM_RANKS, "cpu", 120.0)
    found: dict[str, Any] = {"sums": {}}
    # Triton's interpreter cuts numbers down to bfloat16, where a GPU rounds them.
    for dtype in (torch.float32,) if is_interpreted() else (torch.float32, torch.bfloat16):
        for num_lines in (1, 2, 17, 64):
            parts_RNO = parts_of(num_lines, dtype)
            bias_O, added_NO = parts_RNO[1, 0] / 3, parts_RNO[2] / 7
            right = in_order(parts_RNO, bias_O, added_NO)
            found["sums"][str(dtype), num_lines] = torch.equal(summed(parts_RNO[rank], bias_O, added_NO), right)
    with torch.inference_mode():
        for dtype in ("float32", "bfloat16"):
            stage = Stage.load(path, 0, 1, "cpu", dtype, NUM_RANKS)
            stage.exact = "on"
            stage.speed_up()
            beside, alone = logits_of(stage, range(4), 4), [logits_of(stage, [row], 1)[0] for row in range(4)]
            is_invariant = stage.is_batch_invariant
            stage.slow_down("it deviates")
            found[dtype] = is_invariant, beside, torch.stack(alone), logits_of(stage, range(4), 4)
    (folder / f"found_{rank}.pickle").write_bytes(pickle.dumps(found))
    distributed.destroy_process_group()


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
    folder, place = tmp_path_factory.mktemp("found"), open_rank_store(NUM_RANKS)
    arguments = [sys.executable, "-m", "tests.decoding.ranks.test_shares"]
    ranks = [
        subprocess.Popen([*arguments, str(rank), str(place.port), path, str(folder)], env=dict(os.environ))
        for rank in range(NUM_RANKS)
    ]
    assert [rank.wait(240) for rank in ranks] == [0] * NUM_RANKS
    return [pickle.loads((folder / f"found_{rank}.pickle").read_bytes()) for rank in range(NUM_RANKS)]


def test_parts_are_added_in_the_order_of_ranks_whatever_the_number_of_lines(found: list[dict[str, Any]]) -> None:
    parts_RNO = parts_of(17, torch.float32)
    nothing_O = torch.zeros(200)
    assert not torch.equal(in_order(parts_RNO, nothing_O, nothing_O), parts_RNO.flip(0).sum(0))
    assert all(all(of_rank["sums"].values()) for of_rank in found), found[0]["sums"]


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
    main(int(sys.argv[1]), int(sys.argv[2]), sys.argv[3], Path(sys.argv[4]))
