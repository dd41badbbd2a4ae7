"""One configuration from YAML, flags and environment; unknown names refused in each."""

import json
from pathlib import Path

import pytest

from actors.settings import EngineSettings
from decoding import SamplingParams
from jobs.config.fields import all_fields, as_dict
from jobs.config.loading import load as load_any
from jobs.config.run import RetryConfig, RunConfig
from jobs.config.serve import ServeConfig
from pipeline.streaming.pool import ActorPool

FIELDS = {"generate": list(all_fields(RunConfig)), "serve": list(all_fields(ServeConfig))}
DESCRIBED = {  # type, default and unit
    "engine.num_slots": ("int or auto", "auto", "rows"),
    "engine.drafter": ("none | ngram | suffix | model | eagle3 | dflash | mtp | assistant | hybrid", None, ""),
    "input.carry_columns": ("list of str", (), ""),
    "actors.memory": ("int, or text such as 8GiB", None, "bytes"),
    "actors.resources": ("map from str to float", {}, ""),
    "serve.port": ("int", 8000, ""),
    "serve.body_timeout_s": ("float", 30.0, "seconds"),
}
EXAMPLES = sorted((Path(__file__).parents[3] / "examples/configs").glob("*.yaml"))  # test_serve.py has serve.yaml
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


def load(yaml_file: Path, *flags: str) -> RunConfig:
    return load_any(RunConfig, [f"--config={yaml_file}", *flags], prog="test")


def test_flags_win_over_environment_and_environment_over_file(yaml_file, monkeypatch):
    assert load(yaml_file).generator.engine.num_slots == 5
    monkeypatch.setenv("DRAY_ENGINE__NUM_SLOTS", "6")
    monkeypatch.setenv("DRAY_SAMPLING__TOP_K", "9")
    assert load(yaml_file).generator.engine.num_slots == 6
    settings = load(yaml_file, "--engine.num_slots=7").generator_settings()
    assert (settings.engine.num_slots, settings.sampling.top_k, settings.sampling.temperature) == (7, 9, 0.5)


def test_a_config_becomes_the_packages_own_settings(yaml_file):
    config = load(yaml_file, "--run.seed=3", "--actors.units_in_flight=4")
    settings = config.generator_settings()
    assert settings.sampling == SamplingParams(temperature=0.5, stop=("a", "b"))
    assert settings.engine == EngineSettings(num_slots=5)
    assert (settings.seed, config.actors.units_in_flight) == (3, 4)


def test_every_field_has_a_help_text_and_its_type_default_and_unit_are_known():
    found = {each.name: each for fields in FIELDS.values() for each in fields}
    assert [name for name, field in found.items() if not field.help] == []
    assert {name: (found[name].type, found[name].default, found[name].unit) for name in DESCRIBED} == DESCRIBED


def test_fields_that_code_sets_are_not_in_the_configuration():
    names = {each.name for fields in FIELDS.values() for each in fields}
    by_code = {"sampling.seed", "seed", "input.template_columns", "serve.fingerprint"}
    assert names & {*by_code, "serve.log_prompts", "serve.created", "serve.max_headers"} == set()


def test_the_endpoint_has_the_sections_of_a_run_that_are_about_models_except_sampling():
    sections = {command: {each.name.partition(".")[0] for each in fields} for command, fields in FIELDS.items()}
    assert sections["generate"] - sections["serve"] == {
        *("task", "input", "output", "sampling", "actors", "program", "score", "learn", "run")
    }
    assert sections["serve"] - sections["generate"] == {"serve"}


def test_a_list_may_be_given_as_its_only_string(yaml_file, monkeypatch):
    yaml_file.write_text("input: {path: a, carry_columns: kind}\noutput: {path: o}\nmodels: {target: t}\n")
    monkeypatch.setenv("DRAY_SAMPLING__STOP", "END")
    config = load(yaml_file)
    assert config.input.options.carry_columns == ("kind",)
    assert config.sampling.params.stop == ("END",)


def test_one_stage_may_be_given_alone_or_stages_as_a_list(yaml_file, monkeypatch):
    def stages(*flags: str) -> tuple[str, ...]:
        return load_any(RetryConfig, [f"--config={yaml_file}", *flags], prog="test").stage

    assert stages("--stage=read") == ("read",)
    assert stages("--stage=read", "--stage=encode") == stages("--stage=read,encode") == ("read", "encode")
    monkeypatch.setenv("DRAY_STAGE", "read")
    assert stages() == ("read",)
    monkeypatch.setenv("DRAY_STAGE", '["read", "params"]')
    assert stages() == ("read", "params")
    monkeypatch.delenv("DRAY_STAGE")
    yaml_file.write_text(f"{YAML}stage: generate\n")
    assert stages() == ("generate",)
    with pytest.raises(ValueError, match=r"  stage.0: input should be 'read', 'template'.*, got 'reading'$"):
        stages("--stage=reading")
    monkeypatch.setenv("DRAY_STAGE", "reading")
    with pytest.raises(ValueError, match=r"  stage: input should be a valid tuple or .* 'read', .*, got 'reading'$"):
        stages()


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("DRAY_ACTORS__LABEL_SELECTOR", "abc", "expected JSON.*: got DRAY_ACTORS__LABEL_SELECTOR=abc$"),
        ("DRAY_SAMPLING__LOGIT_BIAS", "{5: 1}", r"expected JSON.*: got DRAY_SAMPLING__LOGIT_BIAS=\{5: 1\}$"),
        ("DRAY_ACTORS", "abc", "DRAY_ACTORS is a section; set its fields, such as DRAY_ACTORS__MIN_ACTORS"),
    ],
)
def test_a_variable_that_should_hold_json_is_named(yaml_file, monkeypatch, name, value, message):
    monkeypatch.setenv("DRAY_ACTORS__MIN_ACTORS", "1")
    monkeypatch.setenv(name, value)
    with pytest.raises(ValueError, match=message) as error:
        load(yaml_file)
    assert "--" not in str(error.value)


def test_the_help_of_a_shared_field_names_what_has_it_and_says_its_unit():
    described = {each.name: each.description for fields in FIELDS.values() for each in fields}
    nouns = {"actors": "actor", "drafts": "draft actor", "stages": "process of a stage", "serve": "engine"}
    for section, noun in nouns.items():
        assert described[f"{section}.memory"] == f"Memory that each {noun} holds, such as 80GiB. (bytes)"
        assert described[f"{section}.label_selector"] == f"Labels of the nodes on which each {noun} may run."
    assert [text for text in described.values() if "{kind" in text] == []
    assert described["run.hang_timeout_s"].startswith("Seconds ")
    assert not described["run.hang_timeout_s"].endswith("(seconds)")


def test_a_run_stores_the_configuration_under_its_own_names(yaml_file):
    stored = as_dict(load(yaml_file, "--run.log_level=error"))
    assert stored["input"] | {"path": "prompts.jsonl", "format": "auto", "carry_columns": ()} == stored["input"]
    assert (stored["run"]["log_level"], stored["engine"]["num_slots"], stored["placement"]) == ("error", 5, "colocated")
    assert "seed" not in stored | stored["sampling"]
    path = yaml_file.with_name("stored.yaml")
    path.write_text(json.dumps(stored))
    assert load(path, "--run.log_level=error") == load(yaml_file, "--run.log_level=error")


@pytest.mark.parametrize(
    ("flag", "message"),
    [
        ("--sampling.ignore_eos=true", "takes no value; write --sampling.ignore_eos or --no-sampling.ignore_eos"),
        ("--engine.num_slot=3", "--engine.num_slot is not a flag; did you mean --engine.num_slots"),
        (
            "--engine.num_slots=x",
            "engine.num_slots: input should be a valid integer.*or input should be 'auto', got 'x'",
        ),
        ("--engine.num_slots=0", "engine.num_slots must be at least 1, got 0"),
        ("--sampling.top_p=2", "sampling.top_p must be a number above 0 and at most 1, got 2.0"),
        ("--actors.min_actors=3", "1 <= min <= max, got 3 and 1"),
        ("--models.dtype=fp8", "models.dtype: input should be 'auto', 'float32'.*got 'fp8'"),
        ("--input.format=xml", "input.format: input should be 'auto', 'parquet'.*got 'xml'"),
        ("--run.rows_per_unit=0", "run.rows_per_unit: input should be greater than or equal to 1, got '0'"),
        ("--actors.num_cpus=0", "actors.num_cpus must be above 0, got 0"),
        ("--actors.num_cpus=nan", "actors.num_cpus must not be negative, got nan"),
        ("--actors.num_gpus=inf", "actors.num_gpus must be a whole number, or a share of one GPU, got inf"),
        ('--actors.resources={"nvme": NaN}', "'nvme' must be a whole number, or a share between 0 and 1, got nan"),
        ("--engine=3", "engine: is a section, whose fields are set one by one, such as engine.backend"),
        ("--engine=x", "--engine is a section; set its fields, such as --engine.backend"),
        ("--actors.initial_actors=5", "initial_actors must lie between min_actors 1 and max_actors 1, got 5"),
        ('--actors.resources={"GPU": 1}', "resources names 'GPU'; that is what actors.num_gpus is for"),
        ('--actors.resources={"nvme": 0}', "'nvme' must be a whole number, or a share between 0 and 1, got 0"),
        ('--actors.resources={"nvme": 1.5}', "'nvme' must be a whole number, or a share between 0 and 1, got 1.5"),
        ("--actors.memory=0", "memory must be a positive number of bytes, got 0"),
        ("--actors.memory=lots", "actors.memory: could not parse value and unit from byte string, got 'lots'"),
        ('--actors.fallback_label_selectors=[{"a": "b"}]', "come after actors.label_selector; set that one first"),
        ("--actors.label_selector=5", "actors.label_selector"),
    ],
)
def test_a_wrong_flag_is_named(yaml_file, flag, message):
    with pytest.raises(ValueError, match=message):
        load(yaml_file, flag)


def test_unknown_and_missing_names_in_the_file_are_all_reported(yaml_file):
    yaml_file.write_text("input: {path: 5, colour: red, forma: csv}\noutput: {path: out}\nmodles: {}\n")
    with pytest.raises(ValueError, match="the configuration is wrong:") as caught:
        load(yaml_file)
    assert set(str(caught.value).splitlines()[1:]) == {
        "  models: is required",
        "  input.path: input should be a valid string or input should be a valid list, got 5",
        "  input.colour: is not a field (see --help)",
        "  input.forma: is not a field; did you mean input.format? (see --help)",
        "  modles: is not a field; did you mean models? (see --help)",
    }


def test_a_section_with_the_name_of_an_option_of_the_library_is_no_field(yaml_file):
    yaml_file.write_text("_env_file: .env\ninput: {path: in}\n")
    with pytest.raises(ValueError, match="_env_file: is not a field"):
        load(yaml_file)


def test_an_unknown_environment_variable_is_named(yaml_file, monkeypatch):
    monkeypatch.setenv("DRAY_ENGIN__NUM_SLOTS", "3")
    with pytest.raises(ValueError, match="DRAY_ENGIN__NUM_SLOTS names no field; did you mean DRAY_ENGINE__NUM_SLOTS"):
        load(yaml_file)


def test_the_file_of_a_configuration_may_be_in_the_home_of_the_user(yaml_file, monkeypatch):
    monkeypatch.setenv("HOME", str(yaml_file.parent))
    assert load(Path("~") / yaml_file.name) == load(yaml_file)


def test_a_missing_config_file_and_broken_yaml_are_named(tmp_path):
    with pytest.raises(ValueError, match="no such file"):
        load(tmp_path / "absent.yaml")
    broken = tmp_path / "broken.yaml"
    broken.write_text("input: [")
    with pytest.raises(ValueError, match=r"broken\.yaml is not YAML"):
        load(broken)


@pytest.mark.parametrize("path", [path for path in EXAMPLES if path.stem != "serve"], ids=lambda path: path.stem)
def test_the_example_configs_are_valid(path):
    assert load(path).generator_settings().models.target


_OF_DECODING = [
    "DRAY_CACHE",
    "DRAY_GRAPHS",
    "DRAY_KEEP_WEIGHTS",
    "DRAY_KERNELS",
    "DRAY_KERNELS_MARCH",
    "DRAY_KERNELS_TILES",
]


@pytest.mark.parametrize("name", _OF_DECODING)
def test_variables_of_decoding_itself_are_accepted(yaml_file, monkeypatch, name):
    monkeypatch.setenv(name, "off")
    assert load(yaml_file).generator.engine.num_slots == 5


def test_the_actors_section_becomes_a_pool(yaml_file):
    pool = {"min_actors": 2, "max_actors": 64, "initial_actors": 16, "num_gpus": 1, "resources": {"nvme": 0.5}}
    pool |= {"accelerator_type": "H100", "label_selector": {"ray.io/market-type": "spot"}}
    fallbacks = ({"ray.io/market-type": "on-demand"},)
    actors = {**pool, "memory": "80GiB", "fallback_label_selectors": fallbacks}
    yaml_file.write_text(f"{YAML}actors: {json.dumps(actors)}\nrun: {{backup_units: false}}\n")
    config = load(yaml_file)
    assert not config.run.backup_units
    assert config.actors == ActorPool(**pool, memory=80 * 1024**3, fallback_label_selectors=fallbacks)  # type: ignore[arg-type]


QUOTES = "(YAML takes yes, no, on and off for true and false: put them in quotes)"
BARE_WORDS = {
    "engine: {drafter: off}": "engine.drafter: input should be 'none', ",
    "input: {path: in, id_column: no}": "input.id_column: input should be a valid string",
    "input: {path: in, carry_columns: [on]}": "input.carry_columns.0: input should be a valid string",
    "run: {seed: yes}": "run.seed: expected a number",
    "run: {rows_per_unit: yes}": "run.rows_per_unit: expected a number",
    "sampling: {stop_token_ids: [on]}": "sampling.stop_token_ids: expected a number",
    "actors: {resources: {nvme: on}}": "actors.resources: expected a number",
    "sampling: {temperature: on}": "sampling.temperature: expected a number",
    "score: {labels: [yes, no]}": "score.labels.0: input should be a valid string",
    "actors: {label_selector: {zone: no}}": "actors.label_selector.zone: input should be a valid string",
}


@pytest.mark.parametrize("section", BARE_WORDS)
def test_a_bare_word_that_yaml_takes_for_a_truth_value_is_refused_saying_so(tmp_path, section):
    path = tmp_path / "run.yaml"
    others = {"input": "input: {path: in}", "output": "output: {path: out}", "models": "models: {target: t}"}
    path.write_text("\n".join([section, *(text for name, text in others.items() if not section.startswith(name))]))
    with pytest.raises(ValueError, match="the configuration is wrong") as caught:
        load(path)
    line = next(line for line in str(caught.value).splitlines() if BARE_WORDS[section] in line)
    assert line.endswith(QUOTES)


@pytest.mark.parametrize(
    ("addition", "name", "lines"),
    [
        ("engine: {num_slots: 6}", "engine", "5 and 7"),
        ("run: {seed: 1, seed: 1}", "run.seed", "7 and 7"),
        ("run:\n  seed: 1\n  exact: any\n  seed: 1", "run.seed", "8 and 10"),
        ("chat: {template_kwargs: {a: [{b: 1, c: 2,\n b: 3}]}}", "chat.template_kwargs.a.b", "7 and 8"),
    ],
)
def test_a_key_that_stands_twice_in_the_file_is_refused_with_both_lines(yaml_file, addition, name, lines):
    yaml_file.write_text(YAML + addition)
    with pytest.raises(ValueError, match=rf"run\.yaml has {name} twice, in the lines {lines}; keep one of them"):
        load(yaml_file)
