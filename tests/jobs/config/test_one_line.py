"""FILE, OUT and short names on the command line: what they become, and what is refused with the line to type."""

from pathlib import Path

import pytest

from jobs.config.as_yaml import as_yaml
from jobs.config.loading import load
from jobs.config.one_line import load_run
from jobs.config.run import GenerateConfig, RunConfig
from jobs.machine.starting_file import InitConfig, load_init


@pytest.fixture
def file(tmp_path: Path, monkeypatch) -> str:
    monkeypatch.chdir(tmp_path)
    Path("questions.jsonl").write_text('{"prompt": "a"}\n')
    Path("answers.txt").write_text("a\n")
    Path("run.yaml").write_text("input: {path: other.jsonl}\noutput: {path: out}\nmodels: {target: t}\n")
    return "questions.jsonl"


def one_line(*words: str) -> GenerateConfig:
    return load_run(GenerateConfig, words, "dray generate")


@pytest.mark.parametrize(
    "words",
    [
        "questions.jsonl out --model t --draft d --max-tokens 9 --temperature 0 --seed 3 --dry-run "
        "--engine.num_slots 4",
        "--model=t questions.jsonl --dry_run --draft=d out --max_tokens=9 --temperature=0.0 --run.seed 3 "
        "--engine.num_slots=4",
        "--no-output.report_html --output.report_html --dry-run questions.jsonl --models.target t out --models.draft d "
        "--sampling.max_tokens 9 --sampling.temperature=0 --seed=3 --engine.num_slots 4",
    ],
)
def test_one_line_says_what_its_long_names_say_wherever_file_and_out_stand(file, words):
    long = (
        "--input.path=questions.jsonl --output.path=out --models.target=t --models.draft=d --sampling.max_tokens=9 "
        "--sampling.temperature=0 --run.seed=3 --engine.num_slots=4 --dry_run"
    )
    said = load(GenerateConfig, long.split(), "test")
    assert one_line(*words.split()) == said
    assert one_line(*words.split()).chosen == {}, "the plan chooses what is open"
    assert said.chosen is None, "long names alone mean what they always meant"


@pytest.mark.parametrize("name", ["a,b.jsonl", "[x].jsonl", "{a}.jsonl", '"q".jsonl'])
def test_a_file_is_the_one_that_is_named_whatever_signs_are_in_its_name(file, name):
    Path(name).write_text('{"prompt": "a"}\n')
    assert one_line(name, "out", "--model", "t").input.path == name


def test_one_place_is_the_output_where_a_file_or_a_flag_has_the_input(file):
    Path("in.yaml").write_text("input: {path: other.jsonl}\nmodels: {target: t}\n")
    assert one_line("out", "--config", "in.yaml").output.path == "out"
    assert load_init(InitConfig, ["my.yml", "--model=t", "--input.path=q.jsonl", "out"], "test").output.path == "out"


def test_a_switch_that_is_turned_off_takes_no_file_as_its_value(file):
    assert one_line("--no-dry-run", "questions.jsonl", "out", "--model", "t").input.path == "questions.jsonl"


def test_several_files_are_read_and_the_last_word_is_the_output(file):
    config = one_line("questions.jsonl", "*.txt", "out", "--model", "t")
    assert (config.input.path, config.output.path) == (["questions.jsonl", "*.txt"], "out")


def test_file_and_out_stand_beside_a_file_of_configuration_that_names_none(file):
    Path("model.yaml").write_text("models: {target: t}\n")
    config = one_line("questions.jsonl", "out", "--config", "model.yaml")
    assert (config.input.path, config.output.path, config.chosen) == ("questions.jsonl", "out", None)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("", r"no input is named.*type\n  dray generate FILE OUT --model MODEL$"),
        ("questions.jsonl", r"no folder is named.*type\n  dray generate questions.jsonl OUT --model MODEL$"),
        ("questions.jsonl out --seed 3", r"no model is named.*\n  dray generate questions.jsonl out .* --seed 3$"),
        ("question.jsonl out --model t", r"no input file 'question.jsonl'; did you mean questions.jsonl\?"),
        ("questions.jsonl answers.txt --model t", r"OUT 'answers.txt' is a file.*such as answers/"),
        (
            "questions.jsonl out --config run.yaml",
            r"run.yaml both say .*: the file has other.jsonl; .*--input.path ques",
        ),
        ("questions.jsonl out --model t --models.target u", "--model and --models.target are two names of one field"),
        ("questions.jsonl out --model t --output.path u", "out and --output.path both say what output.path is"),
        ("questions.jsonl out --modle t", r"--modle is not a flag; did you mean --model\?"),
        ("questions.jsonl out --model", "--model needs a value"),
    ],
)
def test_what_is_missing_or_said_twice_is_named_with_what_to_type(file, words, said):
    with pytest.raises(ValueError, match=f"(?s){said}"):
        one_line(*words.split())


def test_the_help_begins_with_the_line_to_type_and_names_the_short_flags(capsys):
    with pytest.raises(SystemExit):
        one_line("--help")
    said = capsys.readouterr().out
    assert said.startswith("usage:\n  dray generate FILE OUT --model MODEL [--draft DRAFT] [--section.field X ...]\n")
    assert "\n  dray generate questions.jsonl out/ --model Qwen/Qwen3-0.6B\n" in said
    assert "--sampling.max_tokens int, --max-tokens int" in said


def test_a_file_written_for_a_line_says_the_same_with_comments_and_without(file):
    config = one_line(
        *("questions.jsonl", "out", "--model", "t", "--temperature", "0.5", '--sampling.stop=["a: b", "c"]'),
        *("--learn.train.max_hours=0.5", '--chat.template_kwargs={"thinking": false}', "--run.no_progress_timeout_s=5"),
    )
    for text in (as_yaml(config), as_yaml(config, (), ["engine.num_slots", "learn.every_rows", "task"])):
        Path("written.yaml").write_text(text)
        assert load(GenerateConfig, ["--config=written.yaml"], "test") == config, text
    assert "  # Temperature; 0 is greedy.\n  temperature: 0.5\n" in text
    assert "  # num_slots: auto\n" in text


def test_init_has_a_name_for_all_that_is_not_given(file):
    config = load_init(InitConfig, ["mine.yaml"], "test")
    assert (config.file, config.input.path, config.output.path) == ("mine.yaml", "questions.jsonl", "out/")
    assert (config.generator.models.target, config.has_model) == ("MODEL", False)
    config = load_init(InitConfig, ["answers.txt", "corpus", "--model=t"], "test")
    assert (config.file, config.input.path, config.output.path) == ("run.yaml", "answers.txt", "corpus")


def test_retry_takes_the_same_line(file):
    assert load_run(RunConfig, ["questions.jsonl", "out", "--model=t"], "test").output.path == "out"
