"""What `jobs.serve` is told."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from jobs import serve
from jobs.serve_config import ServeConfig, load_serve_config

PROG = "python -m jobs.serve"


def load(*flags: str) -> ServeConfig:
    return load_serve_config(["--models.target", "target", *flags], PROG)


def test_the_configuration_reaches_every_part() -> None:
    config = load(
        "--serve.max_waiting=7",
        "--serve.min_replicas=2",
        "--serve.max_replicas=5",
        "--serve.drain_timeout_s=9",
        "--serve.request_timeout_s=11",
        "--serve.aliases=a",
        "--engine.num_slots=3",
    )
    assert config.replica_settings().max_waiting == 7
    deployment = config.deployment_settings(1.0)
    assert (deployment.min_replicas, deployment.max_replicas, deployment.drain_timeout_s) == (2, 5, 9.0)
    assert deployment.num_gpus == 1.0
    service = config.service_settings("name", "fp")
    assert (service.model, service.aliases, service.fingerprint) == ("name", ("a",), "fp")
    assert service.request_timeout_s == 11.0
    assert config.generator_settings().engine.num_slots == 3


@pytest.mark.parametrize(
    ("flags", "problem"),
    [
        (["--serve.bogus=1"], "bogus"),
        (["--sampling.temperature=1"], "sampling"),
        (["--serve.min_replicas=3"], "serve.min_replicas and max_replicas must satisfy 1 <= min <= max"),
        (["--serve.max_waiting=-1"], "serve.max_waiting must not be negative"),
        (["--serve.max_surge_percent=0"], "serve.max_surge_percent must be above 0"),
        (["--serve.port=0"], "serve.port"),
        (["--serve.max_choices=0"], "serve.max_choices must be at least 1"),
        (["--serve.request_timeout_s=0"], "serve.request_timeout_s must be above 0"),
        (["--serve.health_timeout_s=0"], "must be above 0 seconds"),
        (['--chat.template_columns={"mood": "state"}'], "requests have no columns"),
        (["--stages.count=2", "--serve.hang_timeout_s=100"], "serve.hang_timeout_s is 100"),
        (["--placement=split"], "no draft model is named"),
        (["--engine.num_slots=0"], "engine.num_slots must be at least 1"),
    ],
)
def test_what_cannot_work_is_refused_before_anything_starts(flags: list[str], problem: str) -> None:
    with pytest.raises(ValueError, match=problem):
        load(*flags)


def test_the_example_is_valid() -> None:
    config = load_serve_config(["--config=examples/configs/serve.yaml"], PROG)
    assert config.service_settings("", "").model == "dray/tiny-pair"


def test_a_dry_run_says_what_would_be_served(text_pair: tuple[str, str], capsys: pytest.CaptureFixture[str]) -> None:
    target, draft = text_pair
    assert serve.main(["--models.target", target, "--models.draft", draft, "--models.device=cpu", "--dry-run"]) == 0
    said = capsys.readouterr().out
    assert "Serving 'target' at http://127.0.0.1:8000/v1" in said
    assert "drafter: model, coupled" in said


def test_a_model_that_is_not_there_is_a_bad_configuration(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert serve.main(["--models.target", str(tmp_path), "--models.device=cpu"]) == 2
    assert str(tmp_path) in capsys.readouterr().err


def test_the_fingerprint_is_that_of_the_model_and_of_what_changes_texts(
    text_pair: tuple[str, str], tmp_path: Path
) -> None:
    def fingerprint(target: str, *flags: str) -> str:
        config = load_serve_config(["--models.target", target, "--models.device=cpu", *flags], PROG)
        return serve._fingerprint(serve.settled(config)[0], None)

    target, copy = text_pair[0], tmp_path / "copy"
    shutil.copytree(target, copy)
    first = fingerprint(target)
    assert fingerprint(str(copy)) == first
    assert fingerprint(target, "--engine.num_slots=2", "--models.draft", text_pair[1]) == first
    assert fingerprint(target, "--engine.max_model_len=50") != first
    assert fingerprint(target, "--models.dtype=bfloat16") != first
    weights = copy / "model.safetensors"
    content = bytearray(weights.read_bytes())
    content[len(content) // 2] ^= 1
    weights.write_bytes(content)
    assert fingerprint(str(copy)) != first
