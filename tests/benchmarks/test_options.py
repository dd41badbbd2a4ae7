"""What the command line accepts, which configurations a pattern names, and which corpus comes of it."""

import pytest

from benchmarks.decoder.configurations import select
from benchmarks.decoder.corpus import make_corpus
from benchmarks.decoder.options import parse
from benchmarks.decoder.transformers_runner import _sampling
from decoding.choices import DRAFTERS, NEED_A_HEAD


@pytest.mark.parametrize(
    ("patterns", "names"),
    [
        (["plain", "fixed-[45]"], ["plain", "fixed-4", "fixed-5"]),
        (["plain*"], ["plain"]),
        (["fixed-[45]*"], ["fixed-4", "fixed-5"]),  # a glob leaves out what must be named
        (["fixed-4-ngram"], ["fixed-4-ngram"]),
    ],
)
def test_a_pattern_names_configurations(patterns, names):
    assert [configuration.name for configuration in select(patterns)] == names


def test_every_drafter_that_needs_no_head_has_an_adaptive_configuration():
    drafters = {c.drafter for c in select(["plain", "adaptive*"])}
    assert drafters == set(DRAFTERS) - set(NEED_A_HEAD)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--repeats", "0"], "--repeats must be at least 1, got 0"),
        (["--batches", "0,4"], "--batches must be numbers from 1 up"),
        (["--batches", "four"], "invalid list of int value: 'four'"),
        (["--only", "plan"], "no configuration is called 'plan'"),
        (["--pair", "nowhere"], "--pair must be a folder with target/, or a GGUF file, got nowhere"),
        (["--acceptance", "1.2"], "--acceptance must be between 0 and 1, got 1.2"),
        (["--samples", "8"], "--samples above 1 needs --temperature above 0"),
        (["--prompt-lengths", "9-3"], "--prompt-lengths must be two numbers, the shorter first"),
        (["--prompt-lengths", "short"], "expected one number of tokens or two, such as 100-1900, got 'short'"),
        (["--prompt-lengths=-5"], "expected one number of tokens or two, such as 100-1900, got '-5'"),
        (["--corpus", "text"], "--corpus text needs --prompts-file"),
        (["--top-p", "0.9"], "--top-p needs --temperature above 0"),
        (["--min-p", "0.1"], "--min-p needs --temperature above 0"),
        (["--temperature", "0.8", "--top-p", "0"], "--top-p must be above 0 and at most 1, got 0.0"),
        (["--temperature", "0.8", "--top-k", "-1"], "--top-k must be 0 or more, got -1"),
        (["--temperature", "-1"], "--temperature must be 0 or 0.01 to 100, got -1.0"),
    ],
)
def test_a_wrong_option_is_refused_before_any_work(arguments, message, capsys):
    with pytest.raises(SystemExit) as exit_:
        parse(arguments, "bench")
    assert exit_.value.code == 2
    assert message in capsys.readouterr().err


def test_rows_are_sampled_as_the_command_line_says(pair):
    arguments = f"--pair {pair} --temperature 0.8 --top-p 0.95 --top-k 40 --min-p 0.05 --new-tokens 7"
    options, _ = parse(arguments.split(), "bench")
    (row,) = make_corpus(options, pair).sequences(1)
    params = row.params
    assert (params.temperature, params.top_p, params.top_k, params.min_p) == (0.8, 0.95, 40, 0.05)
    assert (params.max_tokens, params.ignore_eos) == (7, True)
    assert _sampling(params) == {"do_sample": True, "temperature": 0.8, "top_p": 0.95, "top_k": 40, "min_p": 0.05}
