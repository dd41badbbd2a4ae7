"""`dray audit`: a run is found to be what its target writes, or not, whatever was forged and made to fit."""

import gzip
import json
import re
import shutil
import socket
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from scipy import stats

from actors.engine.loop import EngineLoop
from decoding import Engine, Sequence
from decoding.grammar.structured import Structured
from jobs import audit, diff, generate, publish, show
from jobs.runs.certainty import most_differing
from pipeline.run.check import check_run
from pipeline.run.directory import RunDirectory
from pipeline.run.fingerprint import model_fingerprint, text_fingerprint, tokenizer_fingerprint
from pipeline.text.codec import TextCodec
from tests.adapted import keep_merged_models_in, save_adapter
from tests.jobs.forgeries import (
    Rows,
    edit_part,
    edit_rows,
    edit_run,
    fail,
    leave_out_of_manifest,
    rewrite,
    say,
    swap_in_manifest,
)
from tests.jobs.runs import arguments, prompts, write_jsonl
from tests.text_pair import CHAT_TEMPLATE

BUNDLED = ("examples/tiny_pair/target", "examples/tiny_pair/draft")
FORM = {"json_schema": {"type": "object", "properties": {"b": {"enum": ["yes", "no"]}}, "required": ["b"]}}
TOOL = {"type": "function", "function": {"name": "pick", "parameters": FORM["json_schema"]}}
PICK = [{"role": "user", "content": "pick"}]
ROWS: list[Any] = [
    *prompts(10),
    {"id": "many", "kind": "a", "prompt": "hello", "sampling": {"n": 3, "logprobs": 1}},
    {"id": "form", "kind": "a", "prompt": "hello", "sampling": {"structured": FORM, "max_tokens": 30}},
    {"id": "greedy", "kind": "a", "prompt": "one two", "sampling": {"temperature": 0}},
    {"id": "tools", "kind": "a", "messages": PICK, "tools": [TOOL], "tool_choice": "required"},
    {"id": "stop", "kind": "a", "prompt": "a small text", "sampling": {"stop": ["e"]}},
    "{not json",
    {"id": "too long", "kind": "a", "prompt": "hello " * 400},
]
FLAGS = ("--run.local", "--sampling.temperature=0.9", "--run.seed=3", "--chat.tool_calls=hermes", "--output.parts")


def write(folder: Path, pair: tuple[str, str], *more: str, rows: list[Any] = ROWS) -> Path:
    source = write_jsonl(folder / "in.jsonl", rows)
    flags = [flag for flag in FLAGS if flag.partition("=")[0] not in [other.partition("=")[0] for other in more]]
    assert generate.main(arguments(source, folder / "out", pair, *flags, *more)) == 0
    return folder / "out"


@pytest.fixture(scope="module")
def honest(tmp_path_factory, text_pair) -> Path:
    """A run that tests only read."""
    return write(tmp_path_factory.mktemp("honest"), text_pair, "--engine.drafter=suffix")


@pytest.fixture
def forged(honest, tmp_path) -> Path:
    """A copy of it, to be forged."""
    return Path(shutil.copytree(honest, tmp_path / "forged"))


def audited(run: Path, capsys, *flags: str) -> tuple[int, str]:
    """Return the exit code of an audit of all rows, and what it printed."""
    capsys.readouterr()
    code = audit.main([str(run), "--rows=all", *flags])
    return code, "".join(capsys.readouterr())


def codec_of(pair: tuple[str, str]) -> TextCodec:
    return TextCodec.load(pair[0])


@pytest.mark.parametrize(
    ("target", "flags"),
    [
        ("tiny", ("--engine.drafter=none", "--sampling.temperature=0")),
        ("tiny", ("--engine.drafter=model", "--sampling.n=2", "--sampling.top_p=0.9", "--engine.num_slots=1")),
        ("bundled", ("--engine.drafter=suffix", "--models.dtype=bfloat16", "--sampling.max_tokens=40")),
    ],
)
def test_nothing_is_reported_of_a_run_that_is_what_its_target_writes(tmp_path, text_pair, capsys, target, flags):
    pair = text_pair if target == "tiny" else BUNDLED
    code, printed = audited(write(tmp_path, pair, *flags), capsys, "--slots=4")
    assert code == 0, printed
    assert "17 of 17 rows" in printed
    assert "0 rows differ" in printed
    assert "at most 0.00% of the rows" in printed


def _forge_rows(run: Path, codec: TextCodec) -> None:
    """Forge a row in each way; the others stay as they are."""
    parts = sorted(run.glob("data/part-*.parquet"))

    def first(rows: Rows) -> Rows:
        row = {each["id"]: each for each in rows}
        tokens = {name: list(each["token_ids"]) for name, each in row.items()}
        rewrite(
            row["row-0"], [*tokens["row-0"][:5], 65 if tokens["row-0"][5] != 65 else 66, *tokens["row-0"][6:]], codec
        )
        rewrite(row["row-1"], tokens["row-1"][:-1], codec)
        rewrite(row["row-2"], [*tokens["row-2"], 70], codec)
        rewrite(row["row-3"], tokens["row-4"], codec)  # the texts of two rows change places
        rewrite(row["row-4"], tokens["row-3"], codec)
        row["row-5"]["num_prompt_tokens"] += 1
        row["row-6"]["finish_reason"] = "stop"
        row["row-7"]["text"] += "!"
        return rows

    def second(rows: Rows) -> Rows:
        samples = [row for row in rows if row["id"] == "many"]
        samples[0]["sample"], samples[1]["sample"] = 1, 0
        for row in rows:
            if row["id"] == "row-8":
                row["kind"] = "another"
            elif row["id"] == "form":
                rewrite(row, list(codec.encode('{"b":"yes"}', True)), codec)
        return sorted((row for row in rows if row["id"] != "row-9"), key=lambda row: (row["row_id"], row["sample"]))

    edit_part(parts[0], first)
    edit_part(parts[1], second)
    fail(run, parts[1], "row-9", row_number=9)


def test_it_finds_each_row_that_was_forged_and_no_other_whatever_was_made_to_fit(forged, text_pair, capsys):
    _forge_rows(forged, TextCodec.load(text_pair[0]))
    code, printed = audited(forged, capsys)
    assert code == 1, printed
    found = dict(re.findall(r"differs: row (\S+), (?:sample \d, )?(.*?):", printed))
    assert found == {
        "row-0": "token 5",
        "row-1": "token 11",
        "row-2": "token 12",
        "row-3": found["row-3"],
        "row-4": found["row-4"],
        "row-5": "num_prompt_tokens",
        "row-6": "finish_reason",
        "row-7": "text",
        "row-8": "kind",
        "row-9": "as a whole",
        "many": found["many"],
        "form": found["form"],
    }, printed
    assert all(found[row].startswith("token ") for row in ("row-3", "row-4", "many", "form"))
    assert "12 rows differ" in printed


def _seed(run: Path, others: dict[str, str]) -> None:
    say(run, run__seed=4)


def _sampling(run: Path, others: dict[str, str]) -> None:
    say(run, sampling__temperature=0.7)


def _form(run: Path, others: dict[str, str]) -> None:
    form = Structured(**FORM).as_dict()
    for section in ("identity", "settings"):
        edit_run(run, lambda said, section=section: said[section]["sampling"].update(structured=form))


def _template(run: Path, others: dict[str, str]) -> None:
    other = CHAT_TEMPLATE.replace("<assistant>", "<answer>")
    say(run, chat__chat_template=other)
    edit_run(run, lambda said: said["identity"]["chat"].update(chat_template=text_fingerprint(other)))


def _model(run: Path, others: dict[str, str]) -> None:
    """A run of one model says that it is of another, which is the one that it is audited with."""
    target = others["model"]
    edit_run(run, lambda said: said["models"].update(target=target))
    edit_run(run, lambda said: said["identity"].update(target=model_fingerprint(target)))


def _tokenizer(run: Path, others: dict[str, str]) -> None:
    tokenizer = others["tokenizer"]
    edit_run(run, lambda said: said["models"].update(tokenizer=tokenizer))
    edit_run(run, lambda said: said["identity"].update(tokenizer=tokenizer_fingerprint(tokenizer)))
    edit_run(run, lambda said: said["settings"]["models"].update(tokenizer=tokenizer))


def _order(run: Path, others: dict[str, str]) -> None:
    edit_rows(run, lambda rows: [rows[1], rows[0], *rows[2:]])


def _left_out(run: Path, others: dict[str, str]) -> None:
    edit_rows(run, lambda rows: rows[:3] + rows[4:])


def _left_out_of_the_manifest(run: Path, others: dict[str, str]) -> None:
    leave_out_of_manifest(run)


def _swapped_in_the_manifest(run: Path, others: dict[str, str]) -> None:
    swap_in_manifest(run)


FORGERIES = {
    "the seed": (_seed, "token"),
    "the sampling": (_sampling, "token"),
    "the form": (_form, "token 0"),
    "the template": (_template, "prompt"),
    "the model": (_model, "token"),
    "the tokenizer": (_tokenizer, "token"),
    "the order of rows": (_order, "not in the order"),
    "a row that is left out": (_left_out, "neither in data nor in errors"),
    "which rows of the input a unit has": (_swapped_in_the_manifest, "manifest: unit 0 has other rows of the input"),
    "a row that the manifest leaves out": (_left_out_of_the_manifest, "manifest: it has 16 rows"),
}


@pytest.fixture(scope="module")
def others(tmp_path_factory, text_pair) -> dict[str, str]:
    """A model and a tokenizer that a forger may name in place of those of the run."""
    folder = tmp_path_factory.mktemp("others")
    tokenizer = json.loads((Path(text_pair[0]) / "tokenizer.json").read_text())
    tokenizer["model"]["merges"] = tokenizer["model"]["merges"][:3]
    shutil.copytree(text_pair[0], folder / "tokenizer")
    (folder / "tokenizer" / "tokenizer.json").write_text(json.dumps(tokenizer))
    return {"model": text_pair[1], "tokenizer": str(folder / "tokenizer")}


@pytest.mark.parametrize("what", FORGERIES)
def test_it_finds_what_was_forged_of_the_run_although_all_records_fit(forged, others, capsys, what):
    forge, expected = FORGERIES[what]
    forge(forged, others)
    code, printed = audited(forged, capsys)
    assert code == 1, printed
    assert any(expected in line for line in printed.splitlines() if line.startswith("differs:")), printed


def test_it_finds_that_an_adapter_wrote_or_that_the_models_here_are_others(tmp_path, text_pair, capsys, monkeypatch):
    keep_merged_models_in(tmp_path / "cache", monkeypatch)
    adapter = save_adapter(text_pair[0], tmp_path / "adapter", seed=1)
    run = write(tmp_path, (adapter, text_pair[1]), "--engine.drafter=none", rows=prompts(3))
    assert audited(run, capsys)[0] == 0
    code, printed = audited(run, capsys, f"--model={text_pair[0]}")
    assert code == 1
    assert re.search(r"differs: run\.json: target: was .* here", printed)
    assert "no text was compared" in printed
    _model(run, {"model": text_pair[0]})
    code, printed = audited(run, capsys)
    assert code == 1
    assert "3 rows differ" in printed


@pytest.mark.parametrize(
    ("flags", "why"),
    [
        (("--engine.verification=rejection", "--engine.drafter=suffix"), "rejection"),
        (("--models.dtype=bfloat16",), "depend on the batch"),
    ],
)
def test_a_run_that_no_one_can_write_again_is_not_audited(tmp_path, text_pair, capsys, flags, why):
    code, printed = audited(write(tmp_path, text_pair, *flags, rows=prompts(2)), capsys)
    assert code == 2
    assert why in printed


def test_scores_are_neither_audited_nor_compared(tmp_path, text_pair, capsys):
    source = write_jsonl(tmp_path / "in.jsonl", [{"prompt": "hello", "answer": " world"}])
    command = [f"--input.path={source}", f"--output.path={tmp_path / 'out'}", f"--models.target={text_pair[0]}"]
    assert generate.main([*command, "--task=score", "--score.continuation_column=answer", "--run.local"]) == 0
    code, printed = audited(tmp_path / "out", capsys)
    assert code == 2
    assert "its rows are scores" in printed
    assert diff.main([str(tmp_path / "out")] * 2) == 2
    assert "has scores; name two runs whose rows are texts" in capsys.readouterr().err


def test_what_is_not_here_is_asked_for(forged, capsys):
    (forged.parent / "other").mkdir()
    other = write_jsonl(forged.parent / "other" / "in.jsonl", prompts(9))
    code, printed = audited(forged, capsys, f"--input={other}")
    assert code == 2
    assert "name the run's own with --input" in printed
    assert audit.main([str(forged.parent / "nothing")]) == 2
    (forged / "data" / "part-000000001.parquet").unlink()
    (forged / "errors" / "part-000000001.parquet").unlink()
    code, printed = audited(forged, capsys, "--partial", "--rows=3", "--seed=5")
    assert code == 0, printed
    assert "3 of 9 rows (seed 5)" in printed


def test_a_publication_is_audited_by_whoever_has_the_weights(honest, text_pair, tmp_path, capsys):
    place, target = tmp_path / "published", f"--model={text_pair[0]}"
    assert publish.main([str(honest), str(place), "--with-input"]) == 0
    assert str(honest.parent) not in (place / "dray" / "run.json").read_text()
    code, printed = audited(place, capsys, target)
    assert code == 0, printed
    assert "17 of 17 rows" in printed
    part = next(place.glob("data/*/part-*.parquet"))
    table = pq.read_table(part)
    rows = table.to_pylist()
    rewrite(rows[4], [70, *rows[4]["token_ids"][1:]], TextCodec.load(text_pair[0]))
    pq.write_table(pa.Table.from_pylist(rows[:6] + rows[7:], schema=table.schema), part)
    code, printed = audited(place, capsys, target)
    assert code == 1
    assert "differs: row row-4, sample 0, token 0" in printed
    assert "neither in data nor in errors" in printed
    shutil.rmtree(place / "dray" / "input")
    code, printed = audited(place, capsys, target)
    assert code == 2
    assert "no input file" in printed


def test_a_publication_is_audited_by_the_data_that_its_card_names_and_as_all_engines_wrote_it(
    forged, text_pair, tmp_path, capsys
):
    part = sorted(forged.glob("data/*.parquet"))[0]
    edit_part(part, lambda rows: rows, kernels="of another kind")
    error = pq.read_table(forged / "errors" / "part-000000001.parquet").slice(0, 1).to_pylist()[0]
    stale = {**error, "row_id": 0, "id": "row-0", "row_number": 0}  # as of a retry that died behind its commit
    pq.write_table(
        pa.Table.from_pylist([stale], RunDirectory.open(str(forged)).errors_schema),
        forged / "errors" / "part-000000000.parquet",
    )
    place, target = tmp_path / "published", f"--model={text_pair[0]}"
    assert publish.main([str(forged), str(place), "--with-input"]) == 0
    data = next(place.glob("data/*"))
    shutil.copytree(data, data.with_name("0123456789abcdef"))  # of a publication that was interrupted
    code, printed = audited(place, capsys, target)
    assert code == 0, printed
    assert "note: written on cpu" in printed
    assert " and of another kind, audited on" in printed or "cpu of another kind and" in printed
    card = place / "README.md"
    card.write_text(card.read_text().replace(data.name, "unfinished").replace("data/unfinished/`", ""))
    code, printed = audited(place, capsys, target)
    assert code == 2
    assert "its README.md names no data" in printed
    (place / "dray" / "run.json").write_text("{}")
    assert audited(place, capsys, target)[0] == 2


def test_keys_in_compressed_input_are_not_published(tmp_path, text_pair, capsys):
    secret = "sk-" + 40 * "a"
    source = tmp_path / "in.jsonl.gz"
    source.write_bytes(gzip.compress(json.dumps({"prompt": "hello", "note": secret}).encode()))
    flags = ["--run.local", f"--models.target={text_pair[0]}", "--engine.drafter=none", "--sampling.max_tokens=4"]
    assert generate.main([f"--input.path={source}", f"--output.path={tmp_path / 'out'}", *flags]) == 0
    assert publish.main([str(tmp_path / "out"), str(tmp_path / "place")]) == 0
    command = [str(tmp_path / "out"), str(tmp_path / "other"), "--with-input"]
    assert publish.main(command) == 1
    assert "note (an API key, dray/input/0000/in.jsonl.gz)" in capsys.readouterr().err
    assert publish.main([*command, "--allow-secrets-in=note"]) == 0


def test_parameters_that_were_given_beside_those_of_the_model_are_as_the_run_had_them(tmp_path, text_pair, capsys):
    target = Path(shutil.copytree(text_pair[0], tmp_path / "target"))
    said = json.loads((target / "generation_config.json").read_text())
    said |= {"do_sample": True, "temperature": 0.5, "top_p": 0.9}
    (target / "generation_config.json").write_text(json.dumps(said))
    given = ("--sampling.from_model", "--sampling.temperature=1.0")  # which is what it is if it is not given, too
    run = write(tmp_path, (str(target), text_pair[1]), *given, "--engine.drafter=none", rows=prompts(2))
    code, printed = audited(run, capsys)
    assert code == 0, printed
    say(run, sampling__top_p=0.7)
    assert audited(run, capsys)[0] == 1


def test_a_row_over_which_memory_runs_out_here_is_not_said_to_differ(forged, capsys, monkeypatch):
    async def write(self: EngineLoop, sequences: list[Sequence]) -> None:
        for sequence in sequences:
            sequence.fail("memory ran out although nothing else ran; use more memory")

    monkeypatch.setattr(EngineLoop, "finish", write)
    code, printed = audited(forged, capsys)
    assert code == 0, printed
    assert "not compared, since a process failed over them, there or here: 16 of the rows" in printed
    assert "at most 94.12% of the rows differ or cannot be compared" in printed
    assert show.main([str(forged), "--row=row-2", "--regenerate"]) == 2
    assert "row row-2 was not compared" in capsys.readouterr().out


@pytest.mark.parametrize("token", [-5, 10**6])
def test_a_token_that_the_model_does_not_have_is_found_as_any_other(forged, capsys, token):
    edit_rows(forged, lambda rows: rows[2]["token_ids"].__setitem__(3, token))
    code, printed = audited(forged, capsys)
    assert code == 1
    assert f"row row-2, sample 0, token 3: no token of the model ({token}) is recorded" in printed


def test_where_another_kind_of_processor_wrote_near_ties_are_named_apart(forged, text_pair, capsys, monkeypatch):
    """Here every token is taken for one, since the margin is that large."""

    def begin_with(token: int, rows: Rows) -> None:
        rewrite(rows[2], [token, *rows[2]["token_ids"][1:]], TextCodec.load(text_pair[0]))

    edit_rows(forged, partial(begin_with, 65))
    assert audited(forged, capsys)[0] == 1
    part = sorted(forged.glob("data/*.parquet"))[0]
    edit_part(part, lambda rows: rows, kernels="of another kind")
    apart = set()
    for token in (66, 65):
        edit_rows(forged, partial(begin_with, token))
        code, printed = audited(forged, capsys)
        assert code == 1, "it is no near tie"
        apart.add(re.search(r"row row-2, .*\((\S+) logits apart", printed)[1])
    assert len(apart) == 2, "a near tie of other tokens would excuse nothing"
    monkeypatch.setattr(Engine, "close_call", 1e6)
    (other,) = {each["kernels"] for each in check_run(RunDirectory.open(str(forged))).engines} - {"of another kind"}
    edit_part(part, lambda rows: rows, kernels=other)
    assert audited(forged, capsys)[0] == 1, "a processor of the same kind does not decide otherwise"
    edit_part(part, lambda rows: rows, kernels="of another kind")
    code, printed = audited(forged, capsys)
    assert code == 0
    assert "at most 5.88% of the rows differ or cannot be compared" in printed
    assert "note: written on cpu of another kind" in printed
    assert re.search(r"near tie, .*row row-2, sample 0, token 0", printed)
    assert "0 rows differ, 1 at near ties" in printed


def test_a_row_over_which_a_process_died_is_named_and_not_compared(forged, capsys):
    path = forged / "errors" / "part-000000001.parquet"
    table = pq.read_table(path)
    rows = table.to_pylist()
    for row in rows:
        row.update(stage="generate", message="the process that ran this row alone died, twice; out of memory")
    pq.write_table(pa.Table.from_pylist(rows, table.schema), path)
    code, printed = audited(forged, capsys)
    assert code == 0, printed
    assert "not compared, since a process failed over them, there or here: 1 of the rows" in printed
    assert "16 of 17 rows" in printed


@pytest.mark.parametrize(
    ("column", "forge"),
    [
        ("logprobs", lambda old: old[:-1]),
        ("logprobs", lambda old: [old[0] - 1, *old[1:]]),
        ("logprobs", lambda old: [None, *old[1:]]),
        ("top_logprobs", lambda old: [[{**old[0][0], "logprob": -0.01}], *old[1:]]),
        ("top_logprobs", lambda old: [[], *old[1:]]),
    ],
)
def test_it_finds_log_probabilities_that_are_others_or_none(forged, capsys, column, forge):
    def of_sample(rows: Rows) -> None:
        row = next(row for row in rows if row[column])
        row[column] = forge(row[column])

    edit_part(sorted(forged.glob("data/part-*.parquet"))[1], of_sample)
    code, printed = audited(forged, capsys)
    assert code == 1
    assert f"row many, sample 0, {column}" in re.findall(r"differs: (.*?):", printed)


@pytest.mark.parametrize(
    ("num_rows", "num_audited", "num_differing"),
    [(50, 50, 0), (1000, 200, 0), (1000, 200, 3), (10**7, 200, 0), (9, 1, 1)],
)
def test_the_certainty_is_the_exact_bound(num_rows, num_audited, num_differing):
    share = most_differing(num_rows, num_audited, num_differing)
    most = round(share * num_rows)
    chance = [stats.hypergeom(num_rows, each, num_audited).cdf(num_differing) for each in (most, most + 1)]
    assert chance[0] >= 0.01 * (1 - 1e-9)
    assert most == num_rows - (num_audited - num_differing) or chance[1] < 0.01


def test_the_certainty_of_a_sample_without_a_difference_is_that_of_a_large_corpus():
    assert most_differing(10**8, 200, 0) == pytest.approx(1 - 0.01 ** (1 / 200), rel=1e-4)


def test_a_row_is_shown_and_written_again_alone(forged, text_pair, capsys):
    for name in ("many", "tools", "too long"):
        assert show.main([str(forged), f"--row={name}", "--regenerate"]) == 0, capsys.readouterr()
    assert "written again: row many, 3 texts of" in capsys.readouterr().out

    edit_rows(forged, lambda rows: rewrite(rows[2], [65, *rows[2]["token_ids"][1:]], TextCodec.load(text_pair[0])))
    assert show.main([str(forged), "--row=row-2", "--regenerate"]) == 1
    assert "written again: row row-2, sample 0, token 0: 'a' (65) is recorded" in capsys.readouterr().out
    assert show.main([str(forged), "--row=row-2", "--regenerate", f"--model={text_pair[1]}"]) == 1
    assert re.search(r"not with what the run names:\n *target: was", capsys.readouterr().out)
    assert show.main([str(forged), "--row=row-2", "--regenerate", "--model=nowhere/at/all"]) == 2


def copied_part(run: Path, folder: Path, number: int = 0) -> tuple[Path, str]:
    """Return a part of a run that was copied away from it, and its footer."""
    folder.mkdir()
    part = Path(shutil.copy(run / f"data/part-{number:09d}.parquet", folder / "copied.parquet"))
    return part, pq.read_schema(part).metadata[b"dray"].decode()


def test_a_row_of_a_part_alone_is_written_again_and_what_must_be_given_is_named(honest, text_pair, tmp_path, capsys):
    part, _ = copied_part(honest, tmp_path / "elsewhere", number=1)
    source = Path(shutil.copy(honest.parent / "in.jsonl", part.parent))
    command = [str(part), "--row=many", "--regenerate"]
    given = (f"--input={source}", f"--model={text_pair[0]}")
    assert show.main([*command, *given]) == 0, capsys.readouterr()
    assert "written again: row many, 3 texts of" in capsys.readouterr().out
    edit = partial(rewrite, token_ids=[65, 66], codec=TextCodec.load(text_pair[0]))
    for needed, why in ((given[1:], "where its input in.jsonl is; name it with --input"), (given[:1], "with --model")):
        assert show.main([*command, *needed]) == 2
        assert why in " ".join("".join(capsys.readouterr()).split())
    assert show.main([str(part), "--row=many"]) == 0
    assert show.main([*command, given[0], f"--model={text_pair[1]}"]) == 1
    assert re.search(r"not with what the run names:\n *target: was", capsys.readouterr().out)
    assert audit.main([str(part)]) == 2
    assert "is a part alone; name its run" in "".join(capsys.readouterr())
    edit_part(part, lambda rows: edit(rows[0]))  # with a footer that does not say where it is from
    assert show.main([*command, *given]) == 2
    assert "no part of a run that says how it was made" in " ".join("".join(capsys.readouterr()).split())


def test_the_footer_of_a_part_has_no_place_of_the_machine_that_wrote_it(tmp_path, text_pair, capsys, monkeypatch):
    keep_merged_models_in(tmp_path / "cache", monkeypatch)
    adapter = save_adapter(text_pair[0], tmp_path / "adapter", seed=1)
    template = tmp_path / "chat.jinja"
    template.write_text(CHAT_TEMPLATE)
    check = "--run.validate.function=tests.jobs.some_checks:has_even_length"
    run = write(tmp_path, (adapter, text_pair[1]), f"--chat.chat_template={template}", check, rows=prompts(8))
    part, footer = copied_part(run, tmp_path / "elsewhere")
    places = (str(tmp_path), str(Path.cwd()), str(Path.home()), socket.gethostname(), "chat.jinja")
    assert not [place for place in places if place in footer]
    said = json.loads(footer)["provenance"]["run"]
    assert said["models"]["target"] == Path(RunDirectory.open(str(run)).run["models"]["target"]).name
    assert said["identity"]["validate"]["source"]
    given = (f"--input={tmp_path / 'in.jsonl'}", f"--model={adapter}")
    name = pq.read_table(part)["id"][0].as_py()
    assert show.main([str(part), f"--row={name}", "--regenerate", *given]) == 0, capsys.readouterr()
