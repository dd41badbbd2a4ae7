"""What we write, speculators reads, and what it writes, we read: the same tensors and the same fields."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from speculators import SpeculatorModel
from speculators.config import SpeculatorsConfig, VerifierConfig
from speculators.models import (
    DFlashDraftModel,
    DFlashSpeculatorConfig,
    DSparkDraftModel,
    DSparkSpeculatorConfig,
    Eagle3DraftModel,
    Eagle3SpeculatorConfig,
    PEagleDraftModel,
    PEagleSpeculatorConfig,
)
from speculators.proposals.greedy import GreedyTokenProposalConfig
from transformers import LlamaConfig, Qwen3Config

from decoding.heads.format.folder import read_head, save_head
from decoding.heads.format.head_config import Kind
from tests.decoding.heads.made_up import NORMS, head

# speculators reads the target of a head with the head, so there must be one: the bundled one, of 6 layers.
TARGET = Path(__file__).parents[2] / "examples" / "tiny_pair" / "target"
V, D, H = 3072, 512, 192
SIZES = {
    "vocab_size": V,
    "hidden_size": H,
    "intermediate_size": 96,
    "num_attention_heads": 6,
    "num_key_value_heads": 3,
    "head_dim": 32,
    "max_position_embeddings": 512,
    "tie_word_embeddings": False,
}
IDS = [1, 3, 5]
_MODELS = {
    "eagle3": (Eagle3DraftModel, Eagle3SpeculatorConfig),
    "peagle": (PEagleDraftModel, PEagleSpeculatorConfig),
    "dflash": (DFlashDraftModel, DFlashSpeculatorConfig),
    "dspark": (DSparkDraftModel, DSparkSpeculatorConfig),
}
_MARKOV: list[tuple[Kind, dict[str, Any]]] = [("dspark", {"markov_head_type": each}) for each in ("gated", "rnn")]
CASES: list[tuple[Kind, dict[str, Any]]] = [("eagle3", flags) for flags in NORMS.values()]
CASES += [("eagle3", {"draft_vocab_size": V}), ("peagle", {}), ("dflash", {}), ("dflash", {"draft_vocab_size": D})]
CASES += [("dspark", {}), *_MARKOV]


@pytest.mark.parametrize(("kind", "flags"), CASES, ids=str)
def test_what_we_write_speculators_reads(kind: Kind, flags: dict[str, Any], tmp_path: Path) -> None:
    defaults = {"draft_vocab_size": V if kind == "dflash" else D, "target_hidden_size": H}
    ours = head(kind, layers=SIZES, target_name=str(TARGET), layer_ids=tuple(IDS), **{**defaults, **flags})
    save_head(ours, str(tmp_path / "head"), "speculators")
    theirs = SpeculatorModel.from_pretrained(str(tmp_path / "head"))
    assert type(theirs) is _MODELS[kind][0]
    found = dict(theirs.state_dict())
    assert [name for name, each in ours.tensors.items() if not torch.equal(found[name], each)] == []
    of_target = {"embed_tokens.weight", "lm_head.weight", "verifier_lm_head.weight", "verifier_norm.weight"}
    assert {name for name in found.keys() - ours.tensors.keys() if "rotary" not in name} <= of_target
    for name, value in flags.items():
        assert getattr(theirs.config, name) == value
    assert theirs.config.speculators_config.proposal_methods[0].speculative_tokens == ours.config.num_speculative_tokens
    assert theirs.config.transformer_layer_config.to_diff_dict().items() >= ours.config.layer_config.items()


@pytest.mark.parametrize(("kind", "flags"), CASES, ids=str)
def test_what_speculators_writes_we_read(kind: Kind, flags: dict[str, Any], tmp_path: Path) -> None:
    theirs = _theirs(kind, flags)
    theirs.save_pretrained(str(tmp_path / "theirs"))
    ours = read_head(str(tmp_path / "theirs"))
    found = theirs.state_dict()
    assert [name for name, each in ours.tensors.items() if not torch.equal(found[name], each)] == []
    assert (ours.config.kind, ours.config.layer_ids, ours.config.layer_ids_are) == (kind, tuple(IDS), "inputs")
    assert ours.config.assumed == ()
    for name, value in flags.items():
        assert getattr(ours.config, name) == value
    save_head(ours, str(tmp_path / "ours"), "speculators")
    said = [json.loads((tmp_path / each / "config.json").read_text()) for each in ("theirs", "ours")]
    for fields in said:
        fields.pop("auto_map", None)  # names the code that they put beside it
        fields["transformer_layer_config"].pop("transformers_version", None)
        fields["transformer_layer_config"].pop("dtype", None)  # ours says it twice
    assert said[0] == said[1]


def _theirs(kind: Kind, flags: dict[str, Any], more: dict[str, Any] | None = None) -> Any:
    """A head of speculators with random weights and a random part of the vocabulary."""
    is_block = kind in ("dflash", "dspark")
    layers = (Qwen3Config if is_block else LlamaConfig)(
        **SIZES, num_hidden_layers=1 if kind == "eagle3" else 2, **(more or {})
    )
    layers._attn_implementation = "eager"  # the other one is for GPUs
    own: dict[str, Any] = {"aux_hidden_state_layer_ids" if is_block else "eagle_aux_hidden_state_layer_ids": IDS}
    own |= {} if kind == "eagle3" else {"mask_token_id": 5}
    own |= {"markov_rank": 8} if kind == "dspark" else {}
    proposal = GreedyTokenProposalConfig(speculative_tokens=4)
    verifier = VerifierConfig(name_or_path=str(TARGET), architectures=["LlamaForCausalLM"])
    model_class, config_class = _MODELS[kind]
    config = config_class(
        transformer_layer_config=layers,
        speculators_config=SpeculatorsConfig(
            algorithm=kind, proposal_methods=[proposal], default_proposal_method="greedy", verifier=verifier
        ),
        **{"draft_vocab_size": V if kind == "dflash" else D, **own, **flags},
    )
    model = model_class(config)
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for weight in model.parameters():
            weight.copy_(torch.randn(weight.shape, generator=generator) / 8)
    ids_D = torch.randperm(V, generator=generator)[: config.draft_vocab_size].sort().values
    marks_V = torch.zeros(V, dtype=torch.bool).index_fill(0, ids_D, True)
    model.load_vocab_mappings(marks_V, ids_D - torch.arange(len(ids_D)))
    return model
