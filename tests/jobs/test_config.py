"""One configuration from YAML, flags and environment; unknown names refused in each."""

import dataclasses
from pathlib import Path

import pytest

from actors.settings import ChatSettings, DraftSettings, ModelSettings
from decoding import EngineOptions, SamplingParams
from jobs.config.run import RunConfig, load_config
from jobs.config.sections import ChatSection, DraftsSection, EngineSection, InputSection, ModelsSection, SamplingSection
from pipeline.inputs.options import InputOptions

YAML = """
input: {path: prompts.jsonl}
output: {path: out}
models: {target: target, draft: draft}
engine: {num_slots: 5}
sampling: {temperature: 0.5, stop: ["a", "b"]}
"""


@pytest.fixture
def yaml_file(tmp_path: Path) -> Path:
    path = tmp_path / "run.yaml"
    path.write_text(YAML)
    return path


SERVE_YAML = Path(__file__).parents[2] / "examples/configs/serve.yaml"  # of another command: test_serve_config.py


def load(yaml_file: Path, *flags: str) -> RunConfig:
    return load_config([f"--config={yaml_file}", *flags], prog="test")


def test_flags_win_over_environment_and_environment_over_the_file(
    yaml_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert load(yaml_file).engine.num_slots == 5
    monkeypatch.setenv("DRAY_ENGINE__NUM_SLOTS", "6")
    monkeypatch.setenv("DRAY_SAMPLING__TOP_K", "9")
    assert load(yaml_file).engine.num_slots == 6
    config = load(yaml_file, "--engine.num_slots=7")
    assert (config.engine.num_slots, config.sampling.top_k, config.sampling.temperature) == (7, 9, 0.5)


def test_a_config_becomes_the_packages_own_settings(yaml_file: Path) -> None:
    config = load(yaml_file, "--run.seed=3", "--actors.units_in_flight=4")
    settings = config.generator_settings()
    assert settings.sampling == SamplingParams(temperature=0.5, stop=("a", "b"))
    assert settings.engine == EngineOptions(num_slots=5)
    assert (settings.seed, config.actor_pool().units_in_flight) == (3, 4)


@pytest.mark.parametrize(
    ("section", "settings", "not_in_section"),
    [
        (EngineSection, EngineOptions, set()),
        (SamplingSection, SamplingParams, {"seed"}),
        (ModelsSection, ModelSettings, set()),
        (ChatSection, ChatSettings, set()),
        (DraftsSection, DraftSettings, set()),
        (InputSection, InputOptions, {"template_columns"}),
    ],
)
def test_sections_offer_what_the_dataclasses_have_with_the_same_defaults(
    section: type, settings: type, not_in_section: set[str]
) -> None:
    defaults = {field.name: field.default for field in dataclasses.fields(settings)}
    offered = section.model_fields.keys() - {"path"}
    assert offered == defaults.keys() - not_in_section
    for name in offered:
        if defaults[name] is not dataclasses.MISSING:
            assert section.model_fields[name].default == defaults[name], name


def test_every_field_says_what_it_is() -> None:
    for name, section in RunConfig.model_fields.items():
        fields = getattr(section.annotation, "model_fields", {name: section})
        assert all(field.description for field in fields.values()), name


@pytest.mark.parametrize(
    ("flag", "message"),
    [
        ("--engine.num_slot=3", "--engine.num_slot is not a flag; did you mean --engine.num_slots"),
        ("--engine.num_slots=x", "engine.num_slots: input should be a valid integer.*got 'x'"),
        ("--engine.num_slots=0", "engine.num_slots must be at least 1, got 0"),
        ("--sampling.top_p=2", "sampling.top_p must be a number above 0 and at most 1, got 2.0"),
        ("--actors.min_actors=3", "1 <= min <= max, got 3 and 1"),
        ("--models.dtype=fp8", "models.dtype"),
        ("--input.format=xml", "input.format"),
    ],
)
def test_a_wrong_flag_is_named(yaml_file: Path, flag: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        load(yaml_file, flag)


def test_unknown_and_missing_names_in_the_file_are_all_reported(tmp_path: Path) -> None:
    path = tmp_path / "run.yaml"
    path.write_text("input: {path: a, colour: red}\noutput: {path: out}\nmodles: {}\n")
    with pytest.raises(ValueError, match=r"(?s)models: is required.*") as caught:
        load(path)
    assert "input.colour: is not a field" in str(caught.value)
    assert "modles: is not a field" in str(caught.value)


def test_an_unknown_environment_variable_is_named(yaml_file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DRAY_ENGIN__NUM_SLOTS", "3")
    with pytest.raises(ValueError, match="DRAY_ENGIN__NUM_SLOTS names no field"):
        load(yaml_file)


def test_a_missing_config_file_and_broken_yaml_are_named(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="no such file"):
        load(tmp_path / "absent.yaml")
    broken = tmp_path / "broken.yaml"
    broken.write_text("input: [")
    with pytest.raises(ValueError, match=r"broken\.yaml is not YAML"):
        load(broken)


@pytest.mark.parametrize(
    "path",
    sorted(set((Path(__file__).parents[2] / "examples/configs").glob("*.yaml")) - {SERVE_YAML}),
    ids=lambda path: path.stem,
)
def test_the_example_configs_are_valid(path: Path) -> None:
    assert load(path).generator_settings().models.target


@pytest.mark.parametrize("name", ["DRAY_CACHE", "DRAY_GRAPHS", "DRAY_KERNELS", "DRAY_KERNELS_MARCH"])
def test_variables_that_decoding_reads_itself_are_no_unknown_fields(
    yaml_file: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.setenv(name, "off")
    assert load(yaml_file).engine.num_slots == 5
