"""Folders of heads as their authors write them, by name and option: what they draft is what their equations say.

The folders are written by hand, and the equations are those of `reference.py` and `block_reference.py`.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import product
from typing import Any

import pytest
import torch

from decoding import SamplingParams
from decoding.drafters.base import NoDrafter
from decoding.drafters.block_drafter import DFlashDrafter
from decoding.drafters.head_drafters import Eagle3Drafter, PEagleDrafter
from decoding.heads.attach import attach
from decoding.heads.format.folder import read_head_config
from decoding.network.language_model import LanguageModel
from tests.decoding.drafters.over_heads import PROMPTS, Watched, engine_over, features_of
from tests.decoding.heads.block_reference import ReferenceBlocks
from tests.decoding.heads.made_up import write_folder
from tests.decoding.heads.reference import ReferenceHead
from tests.decoding.tiny import CONTEXT, VOCAB_SIZE, build, llama_config, outputs, save

H, D, KV = 32, 30, 16  # hidden size, drafted tokens, and size of the keys of a tiny head
SIZES = {
    "hidden_size": H, "intermediate_size": 48, "num_hidden_layers": 1, "num_attention_heads": 4, "head_dim": 8,
    "num_key_value_heads": 2, "vocab_size": VOCAB_SIZE, "rms_norm_eps": 1e-6, "max_position_embeddings": CONTEXT,
}  # fmt: skip
COMMON = {
    "hidden_act": "silu", "initializer_range": 0.02, "tie_word_embeddings": False, "torch_dtype": "float32",
    "use_cache": True, "attention_bias": False, "attention_dropout": 0.0, "transformers_version": "4.53.2",
    "rope_scaling": None, "rope_theta": 10000.0, "bos_token_id": None, "eos_token_id": 1,
}  # fmt: skip
LLAMA = {**SIZES, **COMMON, "model_type": "llama"}


def layer(name: str, inputs: int = H) -> dict[str, tuple[int, ...]]:
    """The shapes of a decoder layer."""
    shapes = {"q": (H, inputs), "k": (KV, inputs), "v": (KV, inputs), "o": (H, H)}
    found = {f"{name}self_attn.{which}_proj.weight": shape for which, shape in shapes.items()}
    found |= {f"{name}mlp.{which}_proj.weight": (48, H) for which in ("gate", "up")}
    found |= {f"{name}mlp.down_proj.weight": (H, 48)}
    return found | {f"{name}{which}_layernorm.weight": (H,) for which in ("input", "post_attention")}


EAGLE3 = {
    **layer("layers.0.", 2 * H), "layers.0.hidden_norm.weight": (H,), "norm.weight": (H,), "fc.weight": (H, 3 * H),
    "lm_head.weight": (D, H), "embed_tokens.weight": (VOCAB_SIZE, H),
}  # fmt: skip
FC_NORMS = {f"fc_norm.{index}.weight": (H,) for index in range(3)}
EAGLE31 = {"fc_norm": True, "norm_output": True}


def speculators(kind: str, layers: dict[str, Any], **own: Any) -> dict[str, Any]:
    """A config.json of the speculators format."""
    method = {"proposal_type": "greedy", "speculative_tokens": 3, "verifier_accept_k": 1, "accept_tolerance": 0.0}
    return {
        "architectures": ["SomeDraftModel"], "auto_map": {"": "config.SomeSpeculatorConfig"}, "dtype": "float32",
        "speculators_model_type": kind, "speculators_version": "0.9.0", "tie_word_embeddings": False,
        "target_hidden_size": None, "draft_vocab_size": D, "transformer_layer_config": layers, **own,
        "speculators_config": {
            "algorithm": kind, "default_proposal_method": "greedy", "proposal_methods": [method],
            "verifier": {"architectures": ["LlamaForCausalLM"], "name_or_path": "someone/target"},
        },
    }  # fmt: skip


class OfPairs(Watched, Eagle3Drafter):
    """A drafter with an EAGLE-3 head, beside its equations."""

    @staticmethod
    def expected(tensors, settings, tokens, features_NX, num_tokens) -> list[int]:
        return ReferenceHead(tensors, settings).draft(tokens, features_NX, num_tokens)


class OfMasks(OfPairs, PEagleDrafter):
    """The same with a P-EAGLE head."""


class OfBlocks(Watched, DFlashDrafter):
    """A drafter with a head that fills in blocks, beside its equations."""

    @staticmethod
    def expected(tensors, settings, tokens, features_NX, num_tokens) -> list[int]:
        return ReferenceBlocks(tensors, settings).draft(tokens, features_NX, num_tokens)[0]


@dataclass
class Form:
    """A kind of heads as one author publishes it."""

    fields: dict[str, Any]
    shapes: dict[str, tuple[int, ...]]
    drafter: Callable[..., Any] = OfPairs
    settings: dict[str, Any] = field(default_factory=dict)  # of its equations
    named: Callable[[str], str] = str  # our names in the file

    def tensors(self) -> dict[str, torch.Tensor]:
        """Wide random weights, so that each part moves the drafts."""
        generator = torch.Generator().manual_seed(3)
        found = {n: torch.randn(s, generator=generator) * 0.3 + ("norm" in n) for n, s in self.shapes.items()}
        if "lm_head.weight" in self.shapes:
            ids_D = torch.randperm(VOCAB_SIZE, generator=generator)[:D].sort().values
            found["d2t"] = ids_D - torch.arange(D)
        return found


NORMS = {f"layers.{index}.self_attn.{which}_norm.weight": (8,) for index in range(2) for which in "qk"}
DFLASH = {
    **layer("layers.0."), **layer("layers.1."), **NORMS, "norm.weight": (H,), "hidden_norm.weight": (H,),
    "fc.weight": (H, 2 * H),
}  # fmt: skip
CONVOLUTIONS = {
    f"layers.{index}.{which}_conv.{name}": shape
    for index, which in product(range(2), ("attention", "mlp"))
    for name, shape in {"base_kernel": (2, 2, H), "kernel_projection.weight": (2 * 2 * H // 16, H)}.items()
}
SELECTOR = {f"candidate_selector.{which}_codebook": (VOCAB_SIZE, 8) for which in ("predecessor", "successor")}
DFLASH2 = {**DFLASH, **CONVOLUTIONS, **SELECTOR, "candidate_selector.hidden_projection.weight": (8, H)}
QWEN3 = {**SIZES, **COMMON, "model_type": "qwen3", "num_hidden_layers": 2}
OWN = {"conv_kernel_size": 2, "conv_group_size": 16, "selector_rank": 8, "selector_top_k": 6}
SCALES = {"input_embedding_scale": 1.5, "output_multiplier": 0.4, "final_logit_softcapping": 5.0}
BLOCK = {"block_size": 5, "mask_token_id": 7, "num_hidden_layers": 2}  # what the equations need to know
SLIDES = {"layer_types": ["sliding_attention"] * 2, "sliding_window": 6, "use_sliding_window": True}
ZLAB = {"mask_token_id": 7, "target_layer_ids": [0, 1]}
OWN_ENDS = {"lm_head.weight": (D, H), "embed_tokens.weight": (VOCAB_SIZE, H)}  # those of the others are the target's
TWO = {"num_hidden_layers": 2}
PEAGLE = {**EAGLE3, **layer("layers.1.")}
IDS = {"eagle_config": {"eagle_aux_hidden_state_layer_ids": [0, 1, 2], "use_aux_hidden_state": True}}
FORMS = {
    "eagle 3.1 of speculators": Form(
        speculators("eagle3", LLAMA, eagle_aux_hidden_state_layer_ids=[0, 1, 2], norm_before_residual=False, **EAGLE31),
        {**EAGLE3, **FC_NORMS},
        settings=EAGLE31,
    ),
    "eagle 3.1 of SpecForge": Form(
        {**LLAMA, "architectures": ["LlamaForCausalLMEagle3"], "draft_vocab_size": D, **EAGLE31, **IDS},
        {**EAGLE3, **FC_NORMS},
        settings=EAGLE31,
        named=lambda name: name.replace("layers.0.", "midlayer."),
    ),
    "eagle 3.1 of Automodel": Form(
        {
            **LLAMA, **EAGLE31, **IDS, "architectures": ["LlamaEagle3DraftModel"], "draft_vocab_size": D,
            "target_hidden_size": H, "num_aux_hidden_states": 3,
        },
        {**EAGLE3, **FC_NORMS},
        settings=EAGLE31,
        named=lambda name: name if name == "d2t" or "lm_head" in name else f"model.{name}",
    ),
    "p-eagle of speculators": Form(
        speculators("peagle", {**LLAMA, **TWO}, eagle_aux_hidden_state_layer_ids=[0, 1, 2], mask_token_id=7),
        {**PEAGLE, "mask_hidden": (1, 1, 3 * H)},
        OfMasks,
        {**TWO, "mask_token_id": 7},
    ),
    "p-eagle for vLLM": Form(
        {
            **LLAMA, **TWO, **IDS, "architectures": ["LlamaForCausalLMEagle3"], "draft_vocab_size": D,
            "parallel_drafting": True, "ptd_token_id": 7, "norm_output": True,
        },
        {**PEAGLE, "mask_hidden": (1, 3 * H)},
        OfMasks,
        {**TWO, "mask_token_id": 7},
        named=lambda name: name.replace("layers.0.", "midlayer."),
    ),
    "dflash of z-lab, with windows": Form(
        {**QWEN3, **SLIDES, "architectures": ["DFlashDraftModel"], "block_size": 5, "dflash_config": ZLAB},
        DFLASH,
        OfBlocks,
        {**BLOCK, **SLIDES, "window_moves": True},
    ),
    "dflash 2 of z-lab": Form(
        {
            **QWEN3, **SLIDES, "architectures": ["DFlash2DraftModel"], "is_causal": False,
            "dflash_config": {**ZLAB, **OWN, **SCALES, "block_size": 5},
        },
        DFLASH2,
        OfBlocks,
        {**BLOCK, **SLIDES, **OWN, **SCALES, "window_moves": True, "sliding_window_non_causal": True},
        named=lambda name: f"{name}.weight" if name.endswith("_codebook") else name,
    ),
    "dflash 2 of speculators": Form(
        speculators(
            "dflash2", {**QWEN3, **SLIDES}, aux_hidden_state_layer_ids=[0, 2], block_size=5, mask_token_id=7, **OWN
        ),
        {**DFLASH2, **OWN_ENDS},
        OfBlocks,
        {**BLOCK, **SLIDES, **OWN, "sliding_window_non_causal": True},
    ),
}  # fmt: skip


@pytest.fixture(scope="module")
def target(tmp_path_factory):
    path = save(build(llama_config(), seed=1), tmp_path_factory.mktemp("target"))
    return LanguageModel.load(path, "cpu"), path


@pytest.mark.usefixtures("_any_head")
@pytest.mark.parametrize("name", FORMS)
def test_a_published_folder_drafts_what_its_equations_say_and_changes_no_text(target, name, tmp_path) -> None:
    (model, path), form = target, FORMS[name]
    tensors = form.tensors()  # by the names of the equations
    stored = {form.named(name): each for name, each in tensors.items()}
    head = attach(write_folder(tmp_path / "head", form.fields, stored), model, path)
    ends = model.network.get_input_embeddings().weight, model.network.get_output_embeddings().weight
    tensors = {"embed_tokens.weight": ends[0].detach(), "lm_head.weight": ends[1].detach(), **tensors}
    settings = {**SIZES, "num_features": len(head.layer_ids), **form.settings}
    sampled = SamplingParams(max_tokens=9, temperature=0.8, seed=1)
    greedy = SamplingParams(max_tokens=8, temperature=0)
    alone = [outputs(engine_over(model.share(), NoDrafter()).generate(PROMPTS, params)) for params in (greedy, sampled)]
    num_accepted, nothing_NX = 0, torch.zeros(0, len(head.layer_ids) * H)
    for num_slots, num_drafted in ((3, 8), (1, 2)):
        drafter = form.drafter(head.share(), num_slots, 80)
        drafter.seen = []
        engine = engine_over(model, drafter, num_slots=num_slots, num_drafted=num_drafted)
        assert outputs(engine.generate(PROMPTS, greedy)) == alone[0]
        assert len(drafter.seen) > 20
        for tokens, drafted, _ in drafter.seen:
            features_NX = features_of(model, tokens[:-1], head.layer_ids) if tokens[1:] else nothing_NX
            assert drafted == form.drafter.expected(tensors, settings, tokens, features_NX, len(drafted)), tokens
        found = engine.generate(PROMPTS, sampled)
        assert outputs(found) == alone[1]
        num_accepted += sum(sum(row.accepted_per_position) for row in found)
    assert num_accepted, "under coupled verification a random head and its target agree by the noise that they share"


def test_a_head_whose_number_of_features_is_not_that_of_its_layers_is_refused(tmp_path) -> None:
    for more, names in ((IDS, r"names \[0, 1, 2\]"), ({}, "names none, so that 3 would be read")):
        fields = {**LLAMA, "draft_vocab_size": D, "num_aux_hidden_states": 4, **more}
        with pytest.raises(ValueError, match=f"reads 4 layers by num_aux_hidden_states, and {names}; name them"):
            read_head_config(write_folder(tmp_path / names[-3:], fields, {}))
