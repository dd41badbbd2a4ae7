"""Heads of the shapes that are published, beside targets of their full size: planned by `--dry-run`, and put together.

The folders have the published configurations, and weights that are holes in files. Networks are on the meta device.
"""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import pytest
import torch
from torch import nn
from transformers import AutoConfig, AutoModelForCausalLM

from decoding.checkpoint.model_files import tensors_in
from decoding.heads.fit import fitting_config
from decoding.heads.format.folder import Head, read_head_config
from decoding.heads.format.tensors import _check_headers, expected_tensors, our_name
from decoding.heads.target_parts import make_network
from jobs import generate
from pipeline.run.fingerprint import quick_model_fingerprint
from tests.decoding.heads.sparse_folder import write_sparse_folder
from tests.jobs.runs import arguments, prompts, write_jsonl
from tests.text_pair import save_tokenizer

_PUBLISHED = Path(__file__).parents[1] / "decoding/heads/published"
_SLOTS, _LENGTH = 8, 2048
_POSITIONS = _SLOTS * (_LENGTH + 1)  # each slot has a spare one
_GIB = 2**30


def _layer(inputs: int, intermediate: int, norms: int, keys: int = 1024) -> int:
    """Return the weights of a layer of width 4096 whose queries, keys and values are made of `inputs` numbers."""
    return inputs * (4096 + 2 * keys) + 4096 * 4096 + 3 * 4096 * intermediate + norms


_LLAMA_LAYER = _layer(4096, 14336, norms=2 * 4096)
_LLAMA = 2 * (32 * _LLAMA_LAYER + 2 * 128256 * 4096 + 4096)  # bytes in bfloat16
_EAGLE3 = 3 * 4096 * 4096 + _layer(2 * 4096, 14336, norms=3 * 4096) + 4096 + 32000 * 4096  # weights
_QWEN3_LAYER = _layer(4096, 12288, norms=2 * 4096 + 2 * 128)
_QWEN3 = 2 * (36 * _QWEN3_LAYER + 2 * 151936 * 4096 + 4096)
_DFLASH = 5 * 4096 * 4096 + 5 * _QWEN3_LAYER + 2 * 4096


@dataclass(frozen=True)
class Case:
    """A published head: its files, and what a plan says of it."""

    config: str
    target: str
    kind: str
    dtype: str
    without: frozenset[str]  # optional tensors that its folder does not have
    draft: str  # printed
    target_bytes: int
    draft_bytes: int
    draft_layers: int
    target_layers: int
    copied_bytes: int = 0  # weights of keys and values, which are multiplied at once for the text, too
    renames: bool = False  # whether the first layer is called midlayer, as its authors do


_CASES = [
    Case(
        config="redhat_llama_eagle3",
        target="llama",
        kind="eagle3",
        dtype="BF16",
        without=frozenset(),
        draft="eagle3 head in the speculators format; 32,000 of 128,256 tokens, inputs of layers 2, 16, 29",
        target_bytes=_LLAMA,
        draft_bytes=2 * (_EAGLE3 + 128256 * 4096),  # it has the embedding
        draft_layers=1,
        target_layers=32,
    ),
    Case(
        config="yuhuili_llama_eagle3",
        target="llama",
        kind="eagle3",
        dtype="F16",
        without=frozenset({"embed_tokens.weight"}),
        draft="eagle3 head in the eagle format; 32,000 of 128,256 tokens, inputs of layers 2, 16, 29",
        target_bytes=_LLAMA,
        draft_bytes=2 * _EAGLE3,
        draft_layers=1,
        target_layers=32,
        renames=True,
    ),
    Case(
        config="zlab_qwen3_dflash",
        target="qwen3",
        kind="dflash",
        dtype="BF16",
        without=frozenset({"embed_tokens.weight", "lm_head.weight", "d2t", "t2d"}),
        draft="dflash head in the eagle format; 151,936 of 151,936 tokens, outputs of layers 1, 9, 17, 25, 33",
        target_bytes=_QWEN3,
        draft_bytes=2 * _DFLASH,
        copied_bytes=2 * 5 * 2 * 1024 * 4096,
        draft_layers=5,
        target_layers=36,
    ),
]
_EVERY_CASE = [pytest.param(case, id=case.config) for case in _CASES]


def _target(folder: Path, name: str) -> tuple[Path, nn.Module]:
    """Write the folder of a target with a small tokenizer; return it and the target's network on the meta device."""
    fields = json.loads((_PUBLISHED / "targets.json").read_text())[name]
    save_tokenizer(folder)
    (folder / "config.json").write_text(json.dumps(fields))
    with torch.device("meta"):
        network = AutoModelForCausalLM.from_config(AutoConfig.from_pretrained(folder), dtype=torch.bfloat16)
    tensors = {name: ("BF16", tuple(weight.shape)) for name, weight in network.named_parameters()}
    return write_sparse_folder(folder, fields, tensors), network


def _head(folder: Path, case: Case) -> Path:
    """Write the folder of a head."""
    fields: dict[str, Any] = json.loads((_PUBLISHED / f"{case.config}.json").read_text())
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(fields))
    dtypes = {"float": case.dtype, "ids": "I64", "marks": "BOOL"}
    expected = expected_tensors(read_head_config(str(folder)))
    tensors = {name: (dtypes[each.kind], each.shape) for name, each in expected.items() if name not in case.without}
    if case.renames:
        tensors = {name.replace("layers.0.", "midlayer."): header for name, header in tensors.items()}
    return write_sparse_folder(folder, fields, tensors)


@pytest.mark.parametrize("case", _EVERY_CASE)
def test_a_published_head_is_planned_by_a_dry_run(case, tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "1000")  # a line of the plan is a line
    monkeypatch.setattr("actors.identity.model_fingerprint", quick_model_fingerprint)  # not of 16 GB of zeros
    target, _ = _target(tmp_path / "target", case.target)
    head = _head(tmp_path / "head", case)
    source = write_jsonl(tmp_path / "in.jsonl", prompts(3))
    flags = ["--dry-run", "--models.device=cpu", "--models.dtype=bfloat16"]
    flags += [f"--engine.num_slots={_SLOTS}", f"--engine.max_model_len={_LENGTH}"]
    assert generate.main(arguments(source, tmp_path / "out", (str(target), str(head)), *flags)) == 0
    printed = " ".join(capsys.readouterr().out.split())

    assert f" draft: {head} ({case.draft})" in printed
    for name, weights, layers in (
        ("target", case.target_bytes, case.target_layers),
        ("draft", case.draft_bytes + case.copied_bytes, case.draft_layers),
    ):
        cache = _POSITIONS * layers * 2 * 8 * 128 * 2  # keys and values of 8 heads of 128 numbers of 2 bytes
        assert (
            f" memory: {name} {(weights + cache) / _GIB:.2f} GiB (weights {weights / _GIB:.2f}, cache "
            f"{cache / _GIB:.2f} for {_SLOTS} slots of {_LENGTH} tokens)"
        ) in printed


@pytest.mark.parametrize("case", _EVERY_CASE)
def test_a_published_heads_network_takes_exactly_the_tensors_of_its_folder(case, tmp_path):
    target_folder, target = _target(tmp_path / "target", case.target)
    folder = _head(tmp_path / "head", case)
    config = fitting_config(str(folder), cast(Any, target).config, str(target_folder))
    headers = {our_name(name): header for name, header in tensors_in(folder / "model.safetensors").items()}
    _check_headers(headers, config)
    tensors = {name: torch.empty(shape, dtype=torch.float16, device="meta") for name, (_, shape) in headers.items()}
    ends = target.get_input_embeddings().weight, target.get_output_embeddings().weight

    network = make_network(Head(config, tensors), lambda: ends, torch.device("meta"), torch.bfloat16)

    weights = dict(network.named_parameters())
    assert {name: tuple(weight.shape) for name, weight in weights.items() if name in headers} == {
        name: shape for name, (_, shape) in headers.items() if name not in ("d2t", "t2d")
    }
    assert {weight.dtype for weight in weights.values()} == {torch.bfloat16}
    lacking = case.without - {"d2t", "t2d"}  # which are no weights
    assert weights.keys() - headers.keys() == lacking
    for name, lent in zip(("embed_tokens.weight", "lm_head.weight"), ends, strict=True):
        if name in lacking:
            assert weights[name] is lent, "what a folder lacks is the target's"
    assert 2 * sum(weight.numel() for name, weight in weights.items() if name in headers) == case.draft_bytes
