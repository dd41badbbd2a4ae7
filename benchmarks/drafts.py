"""What a draft is worth on a pair: `python -m benchmarks.drafts`, plain decoding and adaptive drafts in turn.

Each repeat generates the same prompts plainly and with every draft. They take turns of a fraction of a second, so that
other work on the machine slows all alike; a speed-up is the median of the repeats' own ratios. Plain decoding takes
part twice: how far the second time is from the first one tells how exact the table is. All must write the same text.
One row at a time they write about a hundred texts, and several rows at once the demo's and 300 more by the same rules:
what is learned of a draft in the first rounds is a large part of a short pass, and not of a run of hours.

With `--heads out/heads` the drafts are those of `python -m examples.tiny_pair.with_heads --out out/heads` and the
bundled head, each beside its own target. Then acceptance lengths with drafts of a fixed length are measured first,
which no other work on the machine changes; with `--repeats 0` nothing else is.
"""

import json
from collections.abc import Mapping
from collections.abc import Sequence as Seq
from dataclasses import replace
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

import torch
from transformers import AutoTokenizer

from benchmarks.engines_in_turns import load_beside, over_plain
from benchmarks.harness import listed, parser_of, show_lines
from benchmarks.roofline.hardware import describe_machine, record
from decoding import Engine, EngineOptions, SamplingParams, Sequence
from examples.tiny_pair.prompts import prompt_rows
from jobs.work.tuning.engine_turns import counts_of
from pipeline.counts import Counts

PAIR, PROMPTS = Path("examples/tiny_pair"), Path("examples/prompts.jsonl")
_MAX_MODEL_LEN = 512
TWIN = "none, again"  # a second engine with the same settings: how much its speed differs is the table's noise
COLUMNS = (
    ("draft", "draft", ""),
    ("rows at once", "rows_at_once", ""),
    ("tokens a round", "tokens_a_round", ".2f"),
    ("acceptance rate", "acceptance_rate", ".3f"),
    ("tokens/s", "tokens_per_second", ",.0f"),
    ("times plain", "times_plain", ".2f"),
    ("least", "least_times_plain", ".2f"),
)


LENGTHS = (
    ("draft", "draft", ""),
    ("kind", "kind", ""),
    ("rows", "rows", ","),
    ("tokens", "tokens", ","),
    ("acceptance length", "tokens_a_round", ".2f"),
    ("acceptance rate", "acceptance_rate", ".3f"),
)
_FIXED = 4  # draft tokens of a round, as in the demo


def main(arguments: Seq[str] | None = None) -> None:
    """Measure, and print a table."""
    parser = parser_of("drafts", __doc__)
    flag = parser.add_argument
    flag("--target", default=str(PAIR / "target"))
    flag("--drafts", type=listed(str), default=(str(PAIR / "draft"), str(PAIR / "head")))
    flag("--heads", type=Path, help="folder of examples.tiny_pair.with_heads, in place of --target and --drafts")
    flag("--prompts", type=Path, default=PROMPTS, help="lines as of the demo")
    flag("--one-in", type=int, default=1, help="of the prompts, those that are generated")
    flag("--batches", type=listed(int), default=(1, 16), help="rows at once")
    flag("--num-draft-tokens", type=int, default=8, help="most tokens that a row drafts in a round")
    flag("--new-tokens", type=int, default=200, help="most output tokens of a row")
    flag("--temperature", type=float, default=0.8)
    flag("--device", default="cpu")
    flag("--dtype", default="float32")
    flag("--threads", type=int, default=1, help="of the processor, as an actor with one CPU has them")
    flag("--repeats", type=int, default=7)
    options = parser.parse_args(arguments)
    torch.set_num_threads(options.threads)
    tokenizer = AutoTokenizer.from_pretrained(options.target)
    asked = options.prompts.read_text().splitlines()[:: options.one_in]
    prompts = [token_ids(tokenizer, line) for line in asked]
    others = prompt_rows("more")[:: options.one_in] if options.prompts == PROMPTS else []
    more = [token_ids(tokenizer, json.dumps(row)) for row in others]
    params = SamplingParams(temperature=options.temperature, max_tokens=options.new_tokens)

    def rows(some: Seq[list[int]], kinds: Seq[str] = ()) -> list[Sequence]:
        tags = kinds or [""] * len(some)
        return [Sequence.create(each, params, row=row, tag=tags[row]) for row, each in enumerate(some)]

    bundled = {"": (options.target, options.drafts)}
    pairs: Mapping[str, tuple[str, Seq[str]]] = bundled if options.heads is None else heads_in(options.heads)
    lengths: list[dict[str, Any]] = []
    for name, (target, (draft,)) in pairs.items() if options.heads is not None else ():
        lengths += lengths_of(name, target, draft, rows(prompts, [json.loads(line)["kind"] for line in asked]), options)
    lines: list[dict[str, Any]] = []
    for batch, (name, (target, drafts)) in product(options.batches, pairs.items()) if options.repeats else ():
        some = [*prompts, *more] if batch > 1 else prompts[:: len(prompts) // 96 or 1]
        own = EngineOptions(
            num_slots=batch, max_model_len=_MAX_MODEL_LEN, num_speculative_tokens=options.num_draft_tokens
        )
        plain = replace(own, drafter="none")
        tried: list[tuple[str | None, EngineOptions]] = [(None, plain), (None, plain)]
        ways = (own,) if name else (own, replace(own, drafter="hybrid"))
        tried += [(draft, each) for draft in drafts for each in ways]
        parts = load_beside(target, tried, options.device, options.dtype)
        names = ["none", TWIN] + [
            name or f"{Path(str(draft)).name} ({each.drafter_name})"
            for (draft, _), each in zip(tried[2:], parts[2:], strict=True)
        ]
        found = over_plain(
            dict(zip(names, parts, strict=True)), [each for _, each in tried], partial(rows, some), options.repeats
        )
        lines += [line | {"target": Path(target).name} for line in found] if name else found
    machine = describe_machine()
    where = f"{machine['processor']}, {machine['threads']} threads, {options.dtype}"
    if lines:
        show_lines(f"{where}, temperature {options.temperature:g}", COLUMNS, lines)
    settings = {name: getattr(options, name) for name in ("dtype", "temperature", "num_draft_tokens", "repeats")}
    if options.heads is None:
        record(options.json, settings=settings, lines=lines)
        return
    show_lines(f"Acceptance lengths, {_FIXED} draft tokens always", LENGTHS, lengths)
    record(options.json, settings=settings | {"fixed": _FIXED}, lengths=lengths, lines=lines)


def heads_in(folder: Path) -> Mapping[str, tuple[str, Seq[str]]]:
    """Return the heads that were trained here, by what tables call them: the target of each, and the head."""
    return {
        "EAGLE-3 head": (str(PAIR / "target"), (str(PAIR / "head"),)),
        "DFlash 2 head": (str(PAIR / "target"), (str(folder / "dflash2"),)),
        "MTP head": (str(folder / "mtp"), ("mtp",)),
        "assistant": (str(folder / "gemma4"), (str(folder / "assistant"),)),
    }


def lengths_of(name: str, target: str, draft: str, rows: list[Sequence], options: Any) -> list[dict[str, Any]]:
    """Return how a draft does on rows of each kind, where it always drafts the same number of tokens."""
    how = EngineOptions(
        num_slots=max(options.batches),
        max_model_len=_MAX_MODEL_LEN,
        draft_length="fixed",
        num_speculative_tokens=_FIXED,
    )
    list(Engine.load(target, draft, how, device=options.device, dtype=options.dtype).stream(rows))
    found = []
    for kind in [*sorted({str(row.tag) for row in rows}), "all"]:
        own = [counts_of(row) for row in rows if kind in (row.tag, "all")]
        counts = sum(own, Counts())
        said = {"draft": name, "kind": kind, "rows": len(own), "tokens": counts.num_output_tokens}
        rates = {"tokens_a_round": counts.mean_acceptance_length, "acceptance_rate": counts.acceptance_rate}
        found.append(said | rates)
    return found


def token_ids(tokenizer: Any, line: str) -> list[int]:
    """Return the token ids of a prompt, given as a line of the demo's input."""
    row = json.loads(line)
    if "messages" in row:
        rendered = tokenizer.apply_chat_template(row["messages"], tokenize=False, add_generation_prompt=True)
        return list(tokenizer(rendered, add_special_tokens=False)["input_ids"])
    return list(tokenizer(row["prompt"])["input_ids"])


if __name__ == "__main__":
    main()
