"""What scoring many texts at a time is worth: `python -m benchmarks.scoring`, against one text at a time.

One at a time is how an endpoint scored the prompts of requests with `echo` before there were batches: each text in
forwards of its own. The two ways take turns, and the figures are medians of their repeats; ratios are those of the same
repeat. On a CPU time is that of the processor, so that other work on the machine counts little. The scores must agree.

Three kinds of rows: prompts that share nothing; choices, as a harness asks for them, each behind the same prompt as a
text of its own; and choices behind examples that all rows share. A row is done when its texts are.
"""

import argparse
import time
from collections.abc import Callable
from collections.abc import Sequence as Seq
from pathlib import Path
from statistics import median
from typing import Any

import torch
from transformers import AutoTokenizer

from benchmarks.hardware import describe_machine
from benchmarks.harness import say, show, synchronize, write_json
from benchmarks.scored_rows import kinds_of_rows, prompts_of
from decoding import Engine, EngineOptions, ScoredText
from decoding.network.target import Target
from decoding.sampling.asked import LOGITS_AT_ONCE, Stretch
from decoding.sequence import TokenLogprobs

_MOST_TOKENS = 512  # of a forward, where it is one text's
_HEADINGS = ("texts", "texts a row", "tokens a text", "one at a time, rows/s", "batched, rows/s", "times", "least")
_Rows = list[list[list[int]]]  # of each row its texts, of each text its tokens


def main(arguments: Seq[str] | None = None) -> None:
    """Measure, and print a table."""
    options = _parse(arguments)
    torch.set_num_threads(options.threads)
    tokenizer = AutoTokenizer.from_pretrained(options.target)
    engine_options = EngineOptions(drafter="none", max_model_len=options.max_model_len)
    engine = Engine.load(options.target, None, engine_options, device=options.device, dtype=options.dtype)
    prompts = prompts_of(options.prompts)
    kinds = kinds_of_rows(prompts)
    lines = []
    for name, rows in kinds.items():
        tokens = [[list(tokenizer(text)["input_ids"])[: options.max_model_len] for text in row] for row in rows]
        lines.append(_measure(engine, name, tokens, options.repeats))
    machine = describe_machine()
    title = f"{machine['processor']}, {machine['threads']} threads, {options.dtype}, {len(prompts)} rows"
    show(title, _HEADINGS, [_cells(line) for line in lines])
    if options.json:
        write_json(options.json, {"machine": machine, "lines": lines})


def _parse(arguments: Seq[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.scoring", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--target", default="examples/tiny_pair/target")
    parser.add_argument("--prompts", type=Path, default=Path("examples/prompts.jsonl"), help="lines as of the demo")
    parser.add_argument("--max-model-len", type=int, default=512)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--threads", type=int, default=1, help="of the processor, as an actor with one CPU has them")
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--json", type=Path)
    return parser.parse_args(arguments)


def _measure(engine: Engine, name: str, rows: _Rows, repeats: int) -> dict[str, Any]:
    """Return the figures of both ways to score these rows."""
    alone, batched = list[float](), list[float]()
    texts = [token_ids for row in rows for token_ids in row]
    scorer = engine.target.share()
    scorer.allocate(1, engine.max_model_len)
    for repeat in range(1 + repeats):  # the first one warms up
        together, each = [ScoredText.whole(token_ids, num_top=1) for token_ids in texts], list[list[TokenLogprobs]]()

        def one_at_a_time(each: list[list[TokenLogprobs]] = each) -> None:
            each.extend(_alone(scorer, token_ids) for token_ids in texts)

        def all_at_once(together: list[ScoredText] = together) -> None:
            engine.clear()  # what an earlier repeat has read is not read for this one
            engine.score(together)

        ways: list[tuple[list[float], Callable[[], None]]] = [(alone, one_at_a_time), (batched, all_at_once)]
        for seconds, work in ways if repeat % 2 else reversed(ways):
            seconds.append(_seconds(work, engine.target.device))
        for one, text in zip(each, together, strict=True):
            pairs = zip(one, text.scores[0], strict=True)
            assert all(abs(a.logprob - b.logprob) < 1e-3 for a, b in pairs), "the two ways do not agree"
        say(f"{name}: repeat {repeat} of {repeats}")
    scorer.release()
    ratios = [one / many for one, many in zip(alone[1:], batched[1:], strict=True)]
    lengths = [len(token_ids) for token_ids in texts]
    return {
        "texts": name,
        "texts_a_row": len(lengths) / len(rows),
        "tokens_a_text": sum(lengths) / len(lengths),
        "alone_rows_per_second": len(rows) / median(alone[1:]),
        "batched_rows_per_second": len(rows) / median(batched[1:]),
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


def _seconds(work: Callable[[], None], device: torch.device) -> float:
    clock = time.process_time if device.type == "cpu" else time.perf_counter
    synchronize(device)
    started = clock()
    work()
    synchronize(device)
    return clock() - started


def _cells(line: dict[str, Any]) -> list[str]:
    return [
        line["texts"],
        f"{line['texts_a_row']:.0f}",
        f"{line['tokens_a_text']:.1f}",
        f"{line['alone_rows_per_second']:,.1f}",
        f"{line['batched_rows_per_second']:,.1f}",
        f"{line['times']:.2f}",
        f"{line['least_times']:.2f}",
    ]


if __name__ == "__main__":
    main()
