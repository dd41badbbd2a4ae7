"""Our EAGLE-3 head has the logits of speculators' own, several tokens ahead, in each variant of its norms."""

from pathlib import Path

import pytest
import torch

from decoding.heads.eagle3_head import Eagle3Head
from decoding.heads.format.folder import read_head
from decoding.heads.format.networks import Eagle3Network
from decoding.heads.format.tensors import target_ids
from decoding.heads.unrolled import unrolled
from tests.decoding.heads.made_up import NORMS
from tests.speculators.test_format import H, V, _theirs

NUM_TOKENS, NUM_STEPS = 16, 3


@pytest.mark.parametrize("variant", NORMS)
def test_logits_are_those_of_speculators(variant: str, tmp_path: Path) -> None:
    theirs = _theirs("eagle3", NORMS[variant]).eval()
    theirs.save_pretrained(str(tmp_path / "head"))
    ours = read_head(str(tmp_path / "head"))
    network = Eagle3Network(ours.config)
    network.load_state_dict({name: each for name, each in ours.tensors.items() if name not in ("d2t", "t2d")})
    generator = torch.Generator().manual_seed(1)
    tokens_1T = torch.randint(V, (1, NUM_TOKENS), generator=generator)
    features_1TX = torch.randn(1, NUM_TOKENS, 3 * H, generator=generator)
    expected: list[torch.Tensor] = []
    hook = theirs.lm_head.register_forward_hook(lambda _module, _given, found: expected.append(found.clone()))
    with torch.no_grad():
        theirs(
            hidden_states=features_1TX[:, :-1],
            input_ids=tokens_1T[:, 1:],
            document_ids=torch.zeros(1, NUM_TOKENS - 1, dtype=torch.long),
            position_ids=torch.arange(1, NUM_TOKENS)[None],
            ttt_steps=NUM_STEPS,
        )
        found = list(unrolled(network, tokens_1T, features_1TX, NUM_STEPS))
    hook.remove()
    assert len(expected) == NUM_STEPS
    for step, logits_1PD in enumerate(found):
        torch.testing.assert_close(logits_1PD, expected[step][:, : logits_1PD.shape[1]], atol=1e-5, rtol=1e-5)
    head = Eagle3Head(network, target_ids(ours.tensors["d2t"], V), (1, 3, 5))
    head.allocate(1, 64)
    states_NH = head.read(tokens_1T[0, 1:], head.project(features_1TX[0])[:-1], ([0], [NUM_TOKENS - 1], [0]))
    drafted_NV = head.logits(states_NH)[0][:, 0]
    ids_D = target_ids(ours.tensors["d2t"], V)
    torch.testing.assert_close(drafted_NV[:, ids_D], expected[0][0], atol=1e-4, rtol=1e-5)
