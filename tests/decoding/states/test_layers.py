"""Modules that are not packed go on token by token; each row reads what it would read alone."""

import inspect

import pytest
import torch
from transformers import FalconH1Config

from decoding.network.probe import check_model
from decoding.states import layers, packed_steps
from tests.decoding.families import STATES, family_network
from tests.decoding.tiny import build, loaded, random_prompts

SLOTS = [2, 0, 3]


@pytest.mark.parametrize("name", STATES)
def test_ragged_rows_go_on_behind_what_was_accepted_of_each(name, tmp_path, monkeypatch):
    monkeypatch.setattr(packed_steps, "is_packed", lambda module: False)  # as without a compiler
    model = loaded(family_network(name, STATES), tmp_path)
    assert model.packs_rows
    texts, junk = random_prompts([12, 5, 9], seed=1), random_prompts([4, 4, 4], seed=2)
    model.allocate(4, 40)
    model.prefill(SLOTS, [text[:n] for text, n in zip(texts, (7, 1, 4), strict=True)])

    def read(starts: list[int], rows: list[list[int]]) -> torch.Tensor:
        width = max(map(len, rows))
        tokens_BT = torch.tensor([row + [0] * (width - len(row)) for row in rows])
        every_BT = torch.arange(width).expand_as(tokens_BT)
        return model.forward(starts, tokens_BT, every_BT, slots=SLOTS, lengths=[len(row) for row in rows])

    read([7, 1, 4], [texts[0][7:9] + junk[0], texts[1][1:2] + junk[1][:1], texts[2][4:5] + junk[2][:3]])
    found = read([9, 2, 5], [texts[0][9:], texts[1][2:], texts[2][5:]])  # 2, 1 and 1 of them were accepted
    for row, start, logits_JV in zip(texts, (9, 2, 5), found, strict=True):
        expected = model.plain(torch.tensor(row), len(row) - start)
        torch.testing.assert_close(logits_JV[: len(row) - start], expected, rtol=1e-3, atol=1e-4)


def test_the_probe_sees_a_module_that_begins_anew_with_the_second_piece_of_a_prompt(tmp_path, monkeypatch):
    monkeypatch.setattr(layers, "_goes_on_at_once", lambda source: True)
    model = loaded(family_network("mamba 1", STATES), tmp_path)
    with pytest.raises(ValueError, match="does not compute the same on the slot cache"):
        check_model(model, "mamba 1")


def test_a_gate_within_the_step_of_mamba_2_is_computed(tmp_path):
    """Falcon-H1 as it is published gates there; in other models a norm comes between."""
    sizes = {"mamba_d_ssm": 32, "mamba_n_heads": 4, "mamba_d_head": 8, "mamba_d_state": 8, "mamba_chunk_size": 8}
    settings = {**STATES["mamba 1"][1], "num_hidden_layers": 2, **sizes, "mamba_rms_norm": False}
    known = set(inspect.signature(FalconH1Config).parameters)
    config = FalconH1Config(**{name: value for name, value in settings.items() if name in known})
    model = loaded(build(config, seed=3), tmp_path)
    assert check_model(model, "falcon_h1") < 1e-5
