"""A run whose draft is the head in its target's own files: what the plan says of it, and what the parts record."""

import json
import shutil
from pathlib import Path

import pytest
from transformers import AutoTokenizer

from jobs.config.loading import load
from jobs.config.run import RunConfig
from jobs.driver.plan import make_plan
from jobs.work.plan_text import print_plan
from tests.decoding.heads.mtp import tiny_targets
from tests.decoding.heads.mtp.test_own_head import perfect
from tests.jobs.runs import arguments, content, prompts, write_jsonl


@pytest.fixture
def target(tmp_path: Path, text_pair: tuple[str, str], monkeypatch) -> str:
    """A target of the family Qwen3.5 with a head that is always right, and a tokenizer."""
    vocab_size = len(AutoTokenizer.from_pretrained(text_pair[0]))
    monkeypatch.setitem(tiny_targets.GROUPED, "vocab_size", vocab_size)
    path, _ = tiny_targets.save_target("qwen3_5", tmp_path / "target")
    for file in Path(text_pair[0]).glob("token*.json"):
        shutil.copy(file, path)
    perfect(path)
    write_jsonl(tmp_path / "in.jsonl", prompts(3))
    return path


def printed(capsys, tmp_path: Path, target: str, draft: str, *more: str) -> str:
    command = arguments(
        tmp_path / "in.jsonl", tmp_path / "out", (target, draft), "--run.local", "--models.device=cpu", *more
    )
    print_plan(make_plan(load(RunConfig, command, prog="test")))
    return " ".join(capsys.readouterr().out.split())


def test_the_plan_says_which_head_is_taken_and_why_none_is(target, text_pair, tmp_path, capsys):
    once = "--engine.verification=rejection"  # where nothing can be tried
    for draft, flags in (("mtp", ()), ("auto", (once,))):
        plan = printed(capsys, tmp_path, target, draft, *flags)
        assert f"draft: {draft} (mtp head in the target's own files, modules: 1)" in plan
        assert "drafter mtp" in plan
        assert "memory: draft" in plan
    plan = printed(capsys, tmp_path, text_pair[0], "auto", once)
    assert "drafter none" in plan
    assert "draft: none, since an MTP head of" in plan
    plan = printed(capsys, tmp_path, target, "auto")
    assert "while they take turns in each engine: mtp (mtp), mtp (hybrid), suffix, ngram, none" in plan
    with pytest.raises(ValueError, match="could not be read: known are"):
        printed(capsys, tmp_path, text_pair[0], "mtp")
    with pytest.raises(ValueError, match=r"drafter is 'hybrid', and .* found none: .*could not be read"):
        printed(capsys, tmp_path, text_pair[0], "auto", "--engine.drafter=hybrid")


def test_a_run_drafts_with_the_head_and_its_parts_say_so(target, tmp_path, capsys):
    from jobs import generate, show

    more = "--run.local", "--models.device=cpu", "--engine.draft_length=fixed", "--no-output.report_html"
    assert generate.main(arguments(tmp_path / "in.jsonl", tmp_path / "out", (target, "mtp"), *more)) == 0
    parts = list((tmp_path / "out" / "data").glob("*.parquet"))
    import pyarrow.parquet as pq

    said = [json.dumps({k.decode(): v.decode() for k, v in pq.read_schema(part).metadata.items()}) for part in parts]
    assert all('\\"drafter\\": \\"mtp\\"' in each for each in said), said[:1]
    report = json.loads((tmp_path / "out" / "report.json").read_text())
    assert report["counts"]["num_accepted_tokens"] > 0
    capsys.readouterr()
    assert show.main([str(tmp_path / "out"), "--row", "row-1"]) == 0
    assert "Module (k - 1) mod n + 1 of the head's n modules drafted the k-th token" in capsys.readouterr().out
    assert generate.main(arguments(tmp_path / "in.jsonl", tmp_path / "tried", (target, "auto"), *more)) == 0
    measured = json.loads((tmp_path / "tried" / "report.json").read_text())["draft_choice"]["measured"]
    assert {"mtp (mtp)", "mtp (hybrid)", "suffix"} <= {each["drafts"] for each in measured}
    assert content(tmp_path / "tried") == content(tmp_path / "out")


def test_auto_among_the_drafts_to_try_is_the_head(target, tmp_path, capsys, monkeypatch):
    from jobs import tune

    monkeypatch.setenv("COLUMNS", "200")
    few = "--tune.seconds=1000", "--tune.slots=2", "--engine.num_slots=2", "--engine.num_speculative_tokens=2"
    command = arguments(tmp_path / "in.jsonl", tmp_path / "out", (target, "mtp"), "--run.local", "--models.device=cpu")
    for more in ("--dry-run",), ():
        assert tune.main([*command, *few, "--tune.drafts=auto", *more]) == 0
        assert "drafters: none, ngram, suffix, mtp (mtp), mtp (hybrid); " in " ".join(capsys.readouterr().out.split())


def test_a_drafter_of_another_kind_than_the_head_is_refused_by_the_plan(target, tmp_path, capsys):
    with pytest.raises(ValueError, match="the head in the target's own files"):
        printed(capsys, tmp_path, target, "mtp", "--engine.drafter=model")
