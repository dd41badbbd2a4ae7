"""`jobs.prove` asks forms, calls, thoughts, stop strings and more of its rows, and sees state that outlives a draft."""

import ctypes
import json
from itertools import product
from pathlib import Path
from typing import Any, get_args

import numpy as np
import pytest

from actors.settings import GeneratorSettings, ModelSettings
from decoding import Engine, EngineOptions, SamplingParams
from decoding.grammar.reader import Reader
from decoding.sampling.rows import Rows
from decoding.sequence import Sequence
from jobs import prove
from jobs.config.prove import AskedName
from jobs.proving.asked import CASES, Codecs, PlacedInput, asking
from jobs.proving.comparison import Setting, rows_of, some_of
from pipeline.text.codec import TextCodec
from tests.endpoint.in_process import BUNDLED
from tests.jobs.runs import arguments
from tests.pipeline.made_up import input_row

PAIR = (str(BUNDLED / "target"), str(BUNDLED / "draft"))
PROMPTS = BUNDLED.parent / "prompts.jsonl"


def proved(folder: Path, *flags: str) -> tuple[int, dict[str, Any]]:
    """Return the exit code and the result of a proof with the bundled pair."""
    path = folder / "proof.json"
    own = ("--sampling.max_tokens=60", "--sampling.temperature=0.8", f"--prove.json_path={path}", *flags)
    code = prove.main(arguments(PROMPTS, folder / "out", PAIR, *own))
    return code, json.loads(path.read_text())


def test_rows_of_all_cases_side_by_side_are_those_of_the_target_alone(tmp_path, capsys):
    drafters = ("--prove.drafters=suffix", "--prove.drafters=hybrid")
    few = (f"--prove.num_prompts={len(CASES)}", "--prove.num_slots=5", "--prove.draft_lengths=4")
    code, result = proved(tmp_path, "--prove.asked=mixed", *drafters, *few)
    printed = capsys.readouterr().out
    assert code == 0, printed
    assert {"mixed", *CASES} == set(get_args(AskedName))
    assert "is left out" not in printed
    assert "errors" not in printed
    assert (result["asked"], result["num_prompts"]) == (["mixed"], len(CASES))
    assert [(each["asked"], bool(each["num_accepted_tokens"])) for each in result["findings"]] == [("mixed", True)] * 4


def test_rows_of_a_case_meet_what_it_is_there_for():
    settings = GeneratorSettings(
        models=ModelSettings(target=PAIR[0]), sampling=SamplingParams(max_tokens=120, temperature=0.8), seed=7
    )
    codec = TextCodec.load(PAIR[0])
    options = EngineOptions(num_slots=16, drafter="none", max_model_len=512)
    engine = Engine.load(PAIR[0], None, options, device="cpu", dtype="float32")
    inputs = [PlacedInput(input_row(prompt=text), place) for place, text in enumerate(("A list of", "The old cup"))]
    rows = rows_of((each for name in CASES for each in asking(inputs, name)), Codecs(codec), settings, 512)  # type: ignore[arg-type]
    list(engine.stream(rows))
    assert [row.error for row in rows if row.error] == []
    alone = {name: [row for row in rows if row.tag == name] for name in CASES}
    texts = {name: [codec.decode(row.output_token_ids) for row in alone[name]] for name in CASES}
    for name, of_case in alone.items():
        assert all(texts[name]), name
        if CASES[name].sampling.get("structured") and not name.startswith("open"):
            assert {row.finish_reason for row in of_case} & {"stop"}, f"{name}: no text comes to its end"
        if name.endswith("_forced"):
            assert all("weather" in text for text in texts[name]), texts[name]
    assert all("</think>" in text and '{"title"' in text.replace(" ", "") for text in texts["thought"])
    assert any(isinstance(row.stop_reason, str) for name in ("stop", "min_tokens") for row in alone[name])
    assert all(len(row.output_token_ids) >= 12 for row in alone["min_tokens"])
    assert all(len(row.logprobs) == len(row.output_token_ids) for row in alone["logprobs"])


def test_some_settings_hold_each_pair_of_drafter_and_length_and_of_drafter_and_slots_and_in_turn_all():
    ways: list[tuple[Any, int]] = [("fixed", 1), ("fixed", 4), ("adaptive", 4)]
    axes = (["ngram", "suffix", "model"], ways, [1, 4, 16])
    settings = [Setting(drafter, *way, num_slots, is_shuffled=False) for drafter, way, num_slots in product(*axes)]
    parts = [some_of(settings, number) for number in range(3)]
    assert sorted(str(each) for part in parts for each in part) == sorted(map(str, settings))
    for part in parts:
        assert len(part) == len(settings) / 3
        assert len({(each.drafter, each.draft_length, each.num_speculative_tokens) for each in part}) == 9
        assert len({(each.drafter, each.num_slots) for each in part}) == 9
    placed = Setting("model", "fixed", 4, 16, is_shuffled=False, where="2 stages")
    assert all(placed in some_of([*settings, placed], number) for number in range(3))
    assert all(some_of(few, number) for few in (settings[:1], settings[::3][:2], settings[:2]) for number in range(3))


def stale_masks(patch: pytest.MonkeyPatch) -> None:
    """Let a mask that was computed behind a draft stay, as the rollback of llguidance does."""
    real = Reader.write_masks

    def write_masks(self: Any, drafted: Any, ends: Any, addresses: Any, num_bytes: int) -> bool:
        is_done = real(self, drafted, ends, addresses, num_bytes)
        kept = self.__dict__.setdefault("kept", {})
        for number, address in enumerate(addresses[: len(drafted) + 1]):
            mask = np.ctypeslib.as_array((ctypes.c_uint8 * num_bytes).from_address(address))
            mask[:] = kept.setdefault(self.num_committed + number, mask.copy())
        return is_done

    patch.setattr(Reader, "write_masks", write_masks)


def stale_stop(patch: pytest.MonkeyPatch) -> None:
    """Let the search for stop strings see tokens that were rejected in the round before."""
    real = Sequence._finish_at_string

    def finish_at_string(self: Sequence, find: Any, num_checked: int) -> None:
        def find_with_rejected(tokens: Any, num: int) -> Any:
            found = find([*tokens[:num_checked], *self.rejected_token_ids, *tokens[num_checked:]], num)
            return None if found is None else (min(found[0], len(tokens)), found[1])

        real(self, find_with_rejected, num_checked)

    patch.setattr(Sequence, "_finish_at_string", finish_at_string)


def stale_counts(patch: pytest.MonkeyPatch) -> None:
    """Let penalties count a token that was rejected in the round before."""
    real = Rows.history

    def history(self: Rows, drafted_BK: Any, first: int, num_positions: int) -> Any:
        found = real(self, drafted_BK, first, num_positions)
        for row, sequence in enumerate(self.sequences):
            if sequence.rejected_token_ids and found.token_ids_BL.shape[1] > len(sequence.prompt_token_ids):
                found.token_ids_BL[row, len(sequence.prompt_token_ids)] = sequence.rejected_token_ids[0]
        return found

    patch.setattr(Rows, "history", history)


def stale_logprobs(patch: pytest.MonkeyPatch) -> None:
    """Let the log-probabilities of a round be kept where its draft was rejected."""
    real = Sequence.commit

    def commit(self: Sequence, token_ids: Any, **more: Any) -> None:
        real(self, token_ids, **more)
        if self.rejected_token_ids:
            self.logprobs.extend(more["logprobs"][-1:])

    patch.setattr(Sequence, "commit", commit)


@pytest.mark.parametrize(
    ("plant", "asked"),
    [(stale_masks, "json_object"), (stale_stop, "stop"), (stale_counts, "penalties"), (stale_logprobs, "logprobs")],
)
def test_state_that_keeps_a_rejected_token_is_found_out(plant, asked, tmp_path, monkeypatch):
    plant(monkeypatch)
    few = ("--prove.num_prompts=20", "--prove.num_slots=4", "--prove.drafters=suffix", "--prove.draft_lengths=4")
    code, result = proved(tmp_path, f"--prove.asked={asked}", *few)
    assert code == 1
    (fixed, _) = result["findings"]
    assert {difference["asked"] for difference in fixed["differences"]} == {asked}
