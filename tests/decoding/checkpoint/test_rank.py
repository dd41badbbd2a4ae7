"""Layers that two processes share out compute what the whole model computes, in every family that is let through."""

import pickle
import subprocess
import sys
from collections.abc import Sequence as Seq
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
import transformers

from decoding.checkpoint.rank import SHARDABLE_MODEL_TYPES, check_can_be_sharded, meet, open_rank_store
from decoding.checkpoint.supported import load_config
from decoding.network.language_model import LanguageModel
from decoding.network.stage import Stage
from tests.decoding.families import FAMILIES, GROUPED, NUM_LAYERS, saved
from tests.decoding.tapped import expected as streams_of

# The class name of the configuration, and its settings.
TABLE: dict[str, tuple[str, dict[str, Any]]] = {
    **FAMILIES,
    "llama_tied": ("LlamaConfig", {**GROUPED, "tie_word_embeddings": True}),
    "qwen3_moe": ("Qwen3MoeConfig", {**GROUPED, "num_experts": 4, "num_experts_per_tok": 2, "head_dim": 8}),
    "olmo2": ("Olmo2Config", GROUPED),
    "granite": ("GraniteConfig", GROUPED),
}
NO_PLAN = {"gpt2", "opt", "falcon", "falcon_alibi", "bloom", "gptj"}
FUSED_IN_RANKS = {"gemma2", "gemma3", "granite", "llama", "llama_tied", "llama_yarn", "mistral", "qwen2", "qwen3"}
NUM_RANKS, NUM_STAGES = 2, 2
TOKENS = torch.arange(12) * 5 % 48
LAYER_IDS = (0, 2, 3, NUM_LAYERS)  # the second stage begins with layer 3


class Found(NamedTuple):
    """What a process found of a model on its slots, in pieces."""

    logits: torch.Tensor
    num_bytes: int  # of the weights in this process
    streams: torch.Tensor
    fast: torch.Tensor  # logits when the stages were made faster
    fast_streams: torch.Tensor
    is_fused: bool
    fallback: str


def main(rank: int, port: int, folder: Path) -> None:
    """One of the processes: what each model gives on its slots, in pieces, as the tests find it in a file."""
    torch.set_num_threads(1)
    meet(port, rank, NUM_RANKS, "cpu", 120.0)
    found: dict[str, Found] = {}
    for path in sorted(path for path in folder.iterdir() if path.is_dir()):
        stages = [Stage.load(str(path), k, NUM_STAGES, "cpu", "float32", NUM_RANKS) for k in range(NUM_STAGES)]
        untapped, _ = _in_pieces(stages, ())
        logits, streams = _in_pieces(stages, LAYER_IDS)
        assert torch.equal(logits, untapped), "no bit depends on whether streams are read"
        num_bytes = sum(stage.num_weight_bytes for stage in stages)
        for stage in stages:
            stage.speed_up()
        of_fast = *_in_pieces(stages, LAYER_IDS), all(stage.fused is not None for stage in stages), stages[0].fallback
        found[path.name] = Found(logits, num_bytes, streams, *of_fast)
    (folder / f"found_{rank}.pickle").write_bytes(pickle.dumps({name: tuple(each) for name, each in found.items()}))


def _in_pieces(stages: list[Stage], layer_ids: Seq[int]) -> tuple[torch.Tensor, torch.Tensor]:
    """Logits of the tokens, and the streams that enter these layers: a prompt, junk, a rollback, the rest."""
    junk = torch.tensor([7, 7, 7])
    for stage in stages:
        stage.allocate(2, 64)
    logits, streams = [], []
    for start, piece in ((0, TOKENS[:5]), (5, junk), (5, TOKENS[5:9]), (9, TOKENS[9:])):
        out, read = piece, [torch.empty(len(piece), 0)]
        for stage in stages:
            features = stage.reader(layer_ids)
            out = stage.forward(out, [start], [len(piece)], torch.arange(len(piece))[None], [1], features=features)
            read += [] if features is None else [features.take()]
        logits.append(out[0])
        streams.append(torch.cat(read, dim=1))
    return torch.cat([logits[0], *logits[2:]]), torch.cat([streams[0], *streams[2:]])


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """With a model of each family that has a plan."""
    folder = tmp_path_factory.mktemp("families")
    for name in sorted(TABLE.keys() - NO_PLAN):
        (folder / name).mkdir()
        saved(name, folder / name, TABLE)
    return folder


@pytest.fixture(scope="module")
def found(folder: Path) -> list[dict[str, Found]]:
    """What each of two processes found of each."""
    place = open_rank_store(NUM_RANKS)
    arguments = [sys.executable, "-m", "tests.decoding.checkpoint.test_rank"]
    ranks = [subprocess.Popen([*arguments, str(rank), str(place.port), str(folder)]) for rank in range(NUM_RANKS)]
    assert [rank.wait(240) for rank in ranks] == [0, 0]
    by_rank = [pickle.loads((folder / f"found_{rank}.pickle").read_bytes()) for rank in range(NUM_RANKS)]
    return [{name: Found(*each) for name, each in families.items()} for families in by_rank]


@pytest.mark.parametrize("family", sorted(TABLE.keys() - NO_PLAN))
def test_shared_out_layers_compute_what_whole_ones_do_and_each_process_has_the_whole_residual_stream(
    family: str, folder: Path, found: list[dict[str, Found]]
) -> None:
    whole = transformers.AutoModelForCausalLM.from_pretrained(folder / family).eval()
    with torch.no_grad():
        expected = whole(TOKENS[None]).logits[0]
    logits, num_bytes, *_ = found[0][family]
    assert (logits - expected).abs().max() < 1e-5 * expected.abs().max()
    assert num_bytes < 0.7 * LanguageModel.load(str(folder / family), "cpu", "float32").num_weight_bytes
    streams = streams_of(whole, TOKENS.tolist(), LAYER_IDS)
    first, second = (families[family].streams for families in found)
    assert torch.equal(first, second)
    assert (first - streams).abs().max() < 1e-5 * streams.abs().max()


@pytest.mark.parametrize("family", sorted(TABLE.keys() - NO_PLAN))
def test_fused_layers_that_are_shared_out_compute_what_whole_ones_do_and_others_say_that_they_are_not_fused(
    family: str, folder: Path, found: list[dict[str, Found]]
) -> None:
    whole = transformers.AutoModelForCausalLM.from_pretrained(folder / family).eval()
    with torch.no_grad():
        expected = whole(TOKENS[None]).logits[0]
    first, second = (families[family] for families in found)
    assert first.is_fused == (family in FUSED_IN_RANKS)
    assert bool(first.fallback) == (family == "olmo2")  # the others that are not fused would not be in one process
    assert (first.fast - expected).abs().max() < 1e-5 * expected.abs().max()
    streams = streams_of(whole, TOKENS.tolist(), LAYER_IDS)
    assert (first.fast_streams - streams).abs().max() < 1e-5 * streams.abs().max()
    assert torch.equal(first.fast, second.fast)
    assert torch.equal(first.fast_streams, second.fast_streams)


def test_every_model_type_that_may_be_sharded_was_compared(folder: Path) -> None:
    types = {load_config(str(folder / name)).get_text_config().model_type for name in TABLE.keys() - NO_PLAN}
    assert types == SHARDABLE_MODEL_TYPES


@pytest.mark.parametrize("family", sorted(NO_PLAN))
def test_a_model_without_a_plan_is_refused(family: str, tmp_path: Path) -> None:
    message = r"not known to compute the same when they are shared out .*use stages.tensor_parallel 1"
    with pytest.raises(ValueError, match=message):
        check_can_be_sharded(load_config(saved(family, tmp_path, TABLE)), family, NUM_RANKS)


def test_heads_must_divide_where_they_are_shared_out(folder: Path) -> None:
    with pytest.raises(ValueError, match="num_attention_heads is 4, which is no multiple of it"):
        check_can_be_sharded(load_config(str(folder / "llama")), "llama", 3)
    check_can_be_sharded(load_config(str(folder / "phi3")), "phi3", 3)  # its plan gathers them


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), Path(sys.argv[3]))
