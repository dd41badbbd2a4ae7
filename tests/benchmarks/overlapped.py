"""What the benchmark sees of an engine whose rounds overlap, as JSON: a process of its own, with TRITON_INTERPRET=1."""

import json
import sys

import torch

from benchmarks.decoder.counts import round_count
from benchmarks.decoder.counts.recorder import ForwardRecorder
from benchmarks.decoder.counts.whole_rounds import begin_anew, rounds_of
from benchmarks.pair_factory import Shape
from decoding import Engine, EngineOptions, SamplingParams, Sequence
from decoding.engine.load import Parts
from decoding.network.language_model import LanguageModel

PROMPTS = [[1, 2, 3], [4, 5]]
OPTIONS = EngineOptions(num_slots=2, drafter="model", num_speculative_tokens=2, draft_length="fixed")


def main() -> None:
    """Generate, replay, generate anew, and count a round."""
    torch.manual_seed(0)
    networks = [Shape(32, 1, 2, 1, 32, 64).network().to(torch.bfloat16) for _ in range(2)]
    target, draft = (LanguageModel(network, frozenset()) for network in networks)
    for model in (target, draft):
        model.speed_up()
    engine = new_engine(target, draft)
    recorder, texts = recorded(engine, target, draft)
    used = begin_anew(engine, new_engine(target, draft))
    again, same_texts = recorded(used, target, draft)
    raw = again.replay(rounds_of(used))
    round_count._ROUNDS = 2
    rows = [Sequence.create([1, 2, 3], SamplingParams(temperature=0, max_tokens=30), row=row) for row in range(2)]
    launches = round_count.count_round(new_engine(target, draft), (target, draft), rows)
    found = {
        "kind": type(engine.lanes[0].ahead).__name__,
        "keeps_recordings": used is engine,
        "texts": [texts, same_texts],
        "counts": [{phase: r.count(phase) for phase in ("prefill", "target", "draft")} for r in (recorder, again)],
        "forwards": [[phase, *vars(forward).values()] for phase, _, forward in recorder.forwards.elements()],
        "raw": vars(raw),
        "launches": vars(launches),
    }
    json.dump(found, sys.stdout)


def new_engine(target: LanguageModel, draft: LanguageModel) -> Engine:
    return Engine.over(Parts(target, draft, "model", 48), OPTIONS)


def recorded(engine: Engine, target: LanguageModel, draft: LanguageModel) -> tuple[ForwardRecorder, list[list[int]]]:
    recorder = ForwardRecorder({"target": target, "draft": draft})
    with recorder.recording():
        rows = engine.generate(PROMPTS, SamplingParams(temperature=0, max_tokens=4, ignore_eos=True))
    return recorder, [row.output_token_ids for row in rows]


if __name__ == "__main__":
    main()
