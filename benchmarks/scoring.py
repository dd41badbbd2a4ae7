"""What scoring many texts at a time is worth: `python -m benchmarks.scoring`, against one text at a time.

One at a time is how an endpoint scored the prompts of requests with `echo` before there were batches: each text in
forwards of its own. The two ways take turns, and the figures are medians of their repeats; ratios are those of the same
repeat. On a CPU time is that of the processor, so that other work on the machine counts little. The scores must agree.

Three kinds of rows: prompts that share nothing; choices, as a harness asks for them, each behind the same prompt as a
text of its own; and choices behind examples that all rows share. A row is done when its texts are.
"""

import json
import time
from collections.abc import Callable
from collections.abc import Sequence as Seq
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

import torch
from transformers import AutoTokenizer

from benchmarks.harness import interleaved, parser_of, seconds_of, show_lines, whole
from benchmarks.roofline.hardware import describe_machine, record
from decoding import Engine, EngineOptions, ScoredText
from decoding.network.target import Target
from decoding.sampling.logprobs import LOGITS_AT_ONCE, Stretch
from decoding.sequence import TokenLogprobs
from decoding.turns import Pass

CHOICES = (" Yes, of course.", " No, not at all.", " Perhaps, some day.", " That is not known.")
_NUM_EXAMPLES = 5
_MOST_TOKENS = 512  # of a forward, where it is one text's
COLUMNS = (
    ("texts", "texts", ""),
    ("texts a row", "texts_a_row", ".0f"),
    ("tokens a text", "tokens_a_text", ".1f"),
    ("one at a time, rows/s", "alone_rows_per_second", ",.1f"),
    ("batched, rows/s", "batched_rows_per_second", ",.1f"),
    ("times", "times", ".2f"),
    ("least", "least_times", ".2f"),
)
Scores = list[list[TokenLogprobs]]  # of each text


@dataclass(frozen=True, kw_only=True)
class ScoredPass(Pass):
    """One repeat of one way to score all rows."""

    scores: Scores


def main(arguments: Seq[str] | None = None) -> None:
    """Measure, and print a table."""
    parser = parser_of("scoring", __doc__)
    flag = parser.add_argument
    flag("--target", default="examples/tiny_pair/target")
    flag("--prompts", type=Path, default=Path("examples/prompts.jsonl"), help="lines as of the demo")
    flag("--max-model-len", type=int, default=512)
    flag("--device", default="cpu")
    flag("--dtype", default="float32")
    flag("--threads", type=int, default=1, help="of the processor, as an actor with one CPU has them")
    flag("--repeats", type=int, default=7)
    options = parser.parse_args(arguments)
    torch.set_num_threads(options.threads)
    tokenizer = AutoTokenizer.from_pretrained(options.target)
    engine_options = EngineOptions(drafter="none", max_model_len=options.max_model_len)
    engine = Engine.load(options.target, None, engine_options, device=options.device, dtype=options.dtype)
    prompts = prompts_of(options.prompts)
    lines = []
    for name, rows in kinds_of_rows(prompts).items():
        tokens = [[list(tokenizer(text)["input_ids"])[: options.max_model_len] for text in row] for row in rows]
        lines.append({"texts": name, **_measure(engine, name, tokens, options.repeats)})
    machine = describe_machine()
    title = f"{machine['processor']}, {machine['threads']} threads, {options.dtype}, {len(prompts)} rows"
    show_lines(title, COLUMNS, lines)
    record(options.json, lines=lines)


def prompts_of(path: Path) -> list[str]:
    """Return the prompts of a file in the form of the demo's: a line of JSON each, with a prompt or messages."""
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    return [str(row["messages"][-1]["content"] if "messages" in row else row["prompt"]) for row in rows]


def kinds_of_rows(prompts: Seq[str]) -> dict[str, list[list[str]]]:
    """Return for each kind its rows, and of each row its texts.

    Prompts that share nothing; choices, as a harness asks for them, each behind the same prompt as a text of its own;
    and choices behind examples that all rows share.
    """
    examples = "".join(f"{prompt}{CHOICES[number % 4]}\n" for number, prompt in enumerate(prompts[:_NUM_EXAMPLES]))
    return {
        "prompts": [[prompt] for prompt in prompts],
        "choices": [[prompt + choice for choice in CHOICES] for prompt in prompts],
        "choices behind examples": [[examples + prompt + choice for choice in CHOICES] for prompt in prompts],
    }


def _measure(engine: Engine, name: str, rows: list[list[list[int]]], repeats: int) -> dict[str, Any]:
    """Return the figures of both ways to score these rows, given as the tokens of their texts."""
    texts = [token_ids for row in rows for token_ids in row]
    scorer, device = engine.target.share(), engine.target.device
    scorer.allocate(1, engine.max_model_len)
    clock = time.process_time if device.type == "cpu" else time.perf_counter

    def one_at_a_time(found: Scores) -> None:
        found += [_alone(scorer, token_ids) for token_ids in texts]

    def all_at_once(found: Scores) -> None:
        together = [ScoredText.whole(token_ids, num_top=1) for token_ids in texts]
        engine.clear()  # what an earlier repeat has read is not read for this one
        engine.score(together)
        found += [text.scores[0] for text in together]

    def scored(work: Callable[[Scores], None], repeat: int) -> ScoredPass:
        found: Scores = []
        seconds = seconds_of(partial(work, found), device, clock=clock)
        return ScoredPass(seconds=seconds, done=len(rows), scores=found)

    ways = {"alone": whole(partial(scored, one_at_a_time)), "batched": whole(partial(scored, all_at_once))}
    table = interleaved(ways, repeats, name)
    scorer.release()
    for both in zip(*table.passes.values(), strict=True):
        for own, other in zip(*(each.scores for each in both), strict=True):
            pairs = zip(own, other, strict=True)
            assert all(abs(a.logprob - b.logprob) < 1e-3 for a, b in pairs), "the two ways do not agree"
    ratios = table.ratios("batched", "alone")
    return {
        "texts_a_row": len(texts) / len(rows),
        "tokens_a_text": sum(map(len, texts)) / len(texts),
        "alone_rows_per_second": table.speed("alone"),
        "batched_rows_per_second": table.speed("batched"),
        "times": median(ratios),
        "least_times": min(ratios),
    }


def _alone(scorer: Target, token_ids: list[int]) -> list[TokenLogprobs]:
    """Score a text in the forwards that the engine did for one prompt before it had batches."""
    size = max(1, min(_MOST_TOKENS, LOGITS_AT_ONCE // scorer.vocab_size))
    found = list[TokenLogprobs]()
    for start in range(0, len(token_ids) - 1, size):
        end = min(start + size, len(token_ids) - 1)
        (scores,) = scorer.logprobs([Stretch.over(0, start, token_ids[start:end], token_ids[start + 1 : end + 1], 1)])
        found += scores
    return found


if __name__ == "__main__":
    main()
