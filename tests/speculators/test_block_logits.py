"""Our DFlash and DSpark heads have the logits and the confidence of speculators' own, behind each token of a text."""

from pathlib import Path
from typing import Any

import pytest
import torch
from speculators.models.dflash import core as dflash_core
from speculators.models.dspark import core as dspark_core

from decoding.heads.dflash_head import DFlashHead
from decoding.heads.format.folder import read_head
from decoding.heads.format.head_config import Kind
from decoding.heads.format.networks import DFlashNetwork
from decoding.heads.format.tensors import target_ids
from tests.speculators.test_format import IDS, D, H, V, _theirs

NUM_TOKENS, BLOCK = 20, 6
_SLIDING = {"use_sliding_window": True, "sliding_window": 4, "layer_types": ["full_attention", "sliding_attention"]}
CASES: list[tuple[Kind, dict[str, Any], dict[str, Any]]] = [
    ("dflash", {}, {}),
    ("dflash", {"draft_vocab_size": D}, {}),
    ("dflash", {"sample_from_anchor": True}, {}),
    ("dflash", {}, _SLIDING),
    ("dflash", {"sliding_window_non_causal": True}, _SLIDING),
    ("dspark", {}, {}),
    ("dspark", {"markov_head_type": "gated", "confidence_head_with_markov": False}, {}),
    ("dspark", {"markov_head_type": "rnn"}, _SLIDING),
    ("dspark", {"markov_head_type": "rnn", "sample_from_anchor": False}, {}),
]


@pytest.mark.parametrize(("kind", "flags", "layers"), CASES, ids=str)
def test_logits_are_those_of_speculators(
    kind: Kind, flags: dict[str, Any], layers: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    theirs = _theirs(kind, {"block_size": BLOCK, **flags}, layers).eval()
    theirs.save_pretrained(str(tmp_path / "head"))
    ours = read_head(str(tmp_path / "head"))
    network = DFlashNetwork(ours.config)
    weights = {name: each for name, each in theirs.state_dict().items() if name in dict(network.named_parameters())}
    assert all(torch.equal(weights[name], each) for name, each in ours.tensors.items() if name not in ("d2t", "t2d"))
    network.load_state_dict(weights)
    ids_D = target_ids(ours.tensors["d2t"], V) if "d2t" in ours.tensors else None
    head = DFlashHead(network, ids_D, IDS)

    generator = torch.Generator().manual_seed(1)
    tokens_1T = torch.randint(V, (1, NUM_TOKENS), generator=generator)
    features_1TX = torch.randn(1, NUM_TOKENS, len(IDS) * H, generator=generator)
    given: list[tuple[Any, ...]] = []
    for core in (dflash_core, dspark_core):
        monkeypatch.setattr(core, "compute_metrics", lambda *args, **_: given.append(args) or (0, {}))
    num_anchors = NUM_TOKENS - BLOCK  # every position that has a block behind it
    with torch.no_grad():
        theirs(
            hidden_states=features_1TX,
            input_ids=tokens_1T,
            loss_mask=torch.ones(1, NUM_TOKENS, dtype=torch.long),
            verifier_last_hidden_states=torch.zeros(1, NUM_TOKENS, H),
            document_ids=torch.zeros(1, NUM_TOKENS, dtype=torch.long),
            max_anchors=num_anchors,
        )
    logits_ASD = given[0][0].view(num_anchors, BLOCK, -1)
    chances_AS = given[0][2].view(num_anchors, BLOCK).sigmoid() if kind == "dspark" else None

    tokens = tokens_1T[0]
    head.allocate(1, 32)
    first = 0 if ours.config.sample_from_anchor else 1
    for anchor in range(num_anchors):
        if anchor:
            head.insert(head.project(features_1TX[0, anchor - 1 : anchor]), [anchor - 1], [1], [0])
        block = head.fill_in(tokens[anchor : anchor + 1], [anchor], [0], head.block_tokens)
        for place in range(head.block_tokens):
            before_1 = tokens[anchor + place : anchor + place + 1]
            logits_11V, chances_1, block = head.next_logits(block, place, before_1)
            found_D = logits_11V[0, 0] if ids_D is None else logits_11V[0, 0, ids_D]
            torch.testing.assert_close(found_D, logits_ASD[anchor, place + first], atol=1e-5, rtol=1e-5)
            if chances_AS is not None:
                torch.testing.assert_close(chances_1[0], chances_AS[anchor, place + first], atol=1e-5, rtol=0)
