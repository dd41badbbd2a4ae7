"""Stages are told what a miniature has shown of the model that they run, before their layers are fused."""

from contextlib import nullcontext
from dataclasses import fields, replace
from types import SimpleNamespace

import pytest
import torch

from actors.stages import probe
from actors.stages.actor import StageFacts
from decoding.network.probe import Lengths


@pytest.mark.parametrize(
    ("lengths", "told"),
    [
        (Lengths(), []),
        (Lengths(may_fuse=False), [("change", "may_fuse", False)]),
        (Lengths(needs_rows_apart=True), [("change", "runs_rows_apart", True)]),
    ],
)
def test_stages_are_told_what_a_miniature_has_shown_before_they_are_fused(lengths, told, monkeypatch):
    found = []
    pipeline = SimpleNamespace(repeat=lambda task: task(), tell_all=lambda *what: found.append(what), facts=list)
    model = SimpleNamespace(
        pipeline=pipeline,
        dtype=torch.float32,
        vocab_size=48,
        max_positions=96,
        fallback="",
        has_exact_products=False,
        facts=lambda: {"ranks": 1},
        plain_logits=lambda text, num_logits: torch.zeros(num_logits, 48),
    )
    for name, answer in {
        "load_config": None,
        "model_folder": None,
        "fp8_format": None,
        "check_lengths": lengths,
    }.items():
        monkeypatch.setattr(probe, name, lambda *_, answer=answer, **__: answer)
    monkeypatch.setattr(probe, "_measured", lambda *_: 0.0)
    monkeypatch.setattr(probe, "_is_misled", lambda *_: False)
    probe.check_chain(model, "stages")
    assert found == [*told, ("change", "exact", "off"), ("speed_up",)]


def test_a_stage_of_ranks_is_fused_recorded_and_exact_only_if_all_of_them_are():
    names = [field.name for field in fields(StageFacts)]
    first = StageFacts(**dict.fromkeys(names, True) | {"fallback": ""})
    other = replace(first, is_recorded=False, is_batch_invariant=False, fallback="it has run out", num_weight_bytes=7)
    joined = StageFacts.of_ranks([first, other])
    assert joined == replace(first, is_recorded=False, is_batch_invariant=False, fallback="it has run out")


@pytest.mark.parametrize(
    ("num_ranks", "dtype", "exact", "is_invariant", "is_refused"),
    [
        (2, torch.bfloat16, "auto", False, True),
        (2, torch.float16, "on", False, True),
        (2, torch.bfloat16, "auto", True, False),
        (2, torch.bfloat16, "off", False, False),
        (2, torch.float32, "auto", False, False),
        (1, torch.bfloat16, "auto", False, False),
    ],
)
def test_ranks_in_16_bits_whose_sums_follow_the_batch_are_refused_by_name(
    num_ranks, dtype, exact, is_invariant, is_refused
):
    model = SimpleNamespace(
        facts=lambda: {"ranks": num_ranks}, dtype=dtype, is_batch_invariant=is_invariant, fallback="they gather"
    )
    message = r"over 2 processes \(stages.tensor_parallel\) in .*float16.* \(they gather\); use models.dtype float32"
    with pytest.raises(ValueError, match=message) if is_refused else nullcontext():
        probe._refuse_inexact_ranks(model, "target", exact)
