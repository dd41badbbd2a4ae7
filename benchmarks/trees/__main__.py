"""What a tree of drafted tokens could gain over a chain: `python -m benchmarks.trees`. And what a draft gains by noise.

The target writes the demo's texts alone. How many tokens a round would have had accepted follows from a draft's logits
along these texts, for chains and for trees: at the first one, two or three places the second best token stands beside
the best, alone or with a chain of its own. What a round takes follows from costs that are measured as an engine does
when it is loaded. Masks, and keys and values that move, cost nothing here: real trees are slower than these.

Beside the measured costs stand those of a target whose forward takes the same time for any number of tokens, and of a
draft whose step takes a given share of it. There a second is a forward of the target.
"""

from collections.abc import Mapping
from collections.abc import Sequence as Seq
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from transformers import AutoTokenizer

from benchmarks.drafts import PAIR, token_ids
from benchmarks.harness import listed, parser_of, say, show_lines
from benchmarks.roofline.hardware import describe_machine, record
from benchmarks.trees.texts import Text, written
from benchmarks.trees.tree import Tree, trees
from decoding import Engine, EngineOptions, SamplingParams
from decoding.engine.measured_costs import measure_costs, with_overhead
from decoding.network.language_model import LanguageModel
from decoding.pace.cost_table import CostTable
from decoding.sampling.rules import COUPLED
from pipeline.counts import Counts
from training.evaluation.pair import Pair

_MAX_MODEL_LEN, _SLOTS = 512, 16
_WIDEST = 4  # branches of a draft: the chain, and those of three siblings
_OF_NOISE = 4  # tokens of the chains that are drafted with and without noise, as in the demo
_WHERE = (("draft", "draft", ""), ("temperature", "temperature", "g"))
SPEEDS = (
    *_WHERE,
    ("costs", "costs", ""),
    ("plain, tokens/s", "plain_speed", ",.4g"),
    ("best chain", "chain", ""),
    ("tokens a round", "chain_tokens", ".2f"),
    ("tokens/s", "chain_speed", ",.4g"),
    ("best tree", "tree", ""),
    ("tokens a round", "tree_tokens", ".2f"),
    ("tokens/s", "tree_speed", ",.4g"),
    ("times the chain", "tree_times_chain", ".3f"),
    ("siblings free", "free_times_chain", ".3f"),
)
NOISE = (*_WHERE, ("with the noise", "with_noise", ".2f"), ("without", "without_noise", ".2f"))


def main(arguments: Seq[str] | None = None) -> None:
    """Compute and measure; print tables."""
    parser = parser_of("trees", __doc__)
    flag = parser.add_argument
    flag("--target", default=str(PAIR / "target"))
    flag("--drafts", type=listed(str), default=(str(PAIR / "draft"), str(PAIR / "head")))
    flag("--prompts", type=Path, default=Path("examples/prompts.jsonl"), help="lines as of the demo")
    flag("--one-in", type=int, default=1, help="of the prompts, those that are generated")
    flag("--temperatures", type=listed(float), default=(0.0, 0.8, 1.0))
    flag("--new-tokens", type=int, default=200, help="most output tokens of a row")
    flag("--most", type=int, default=8, help="tokens of the longest chain")
    flag("--batches", type=listed(int), default=(1, 16), help="rows at once")
    flag("--shares", type=listed(float), default=(0.05, 0.2), help="what a draft's step takes of a flat forward")
    flag("--threads", type=int, default=1, help="of the processor, as an actor with one CPU has them")
    options = parser.parse_args(arguments)
    torch.set_num_threads(options.threads)
    tokenizer = AutoTokenizer.from_pretrained(options.target)
    prompts = [token_ids(tokenizer, line) for line in options.prompts.read_text().splitlines()[:: options.one_in]]
    how = EngineOptions(drafter="none", num_slots=_SLOTS, max_model_len=_MAX_MODEL_LEN)
    engine = Engine.load(options.target, None, how, device="cpu", dtype="float32")
    assert isinstance(engine.target, LanguageModel)
    most, texts = options.most, {}
    for temperature in options.temperatures:
        params = SamplingParams(temperature=temperature, max_tokens=options.new_tokens)
        texts[temperature] = written(engine, prompts, params)
    lengths, speeds, noise = [], [], []
    for path in options.drafts:
        pair, name = Pair(path, options.target, "cpu", "float32", engine.target.share()), Path(path).name
        costs = {f"{rows} at once": (True, rows, measure(pair, rows, most)) for rows in options.batches}
        flat = {share: CostTable(((1, 1.0),), ((1, share),)) for share in options.shares}
        costs |= {f"flat, {share:g} a step": (False, 1, table) for share, table in flat.items()}
        for temperature, examples in texts.items():
            say(f"{name}, temperature {temperature:g}")
            read = [Text.read(pair, example, max(most, _OF_NOISE)) for example in examples]
            found = {tree: _rounds(read, tree) for tree in trees(most)}
            where = {"draft": name, "temperature": temperature}
            tokens = {tree: counts.num_output_tokens / counts.num_rounds for tree, counts in found.items()}
            by_kind: dict[str, dict[str, float | None]] = {}
            for tree, each in tokens.items():
                by_kind.setdefault(tree.kind, dict.fromkeys(map(str, range(1, most + 1))))[str(tree.depth)] = each
            lengths += [{**where, "kind": kind, **by_depth} for kind, by_depth in by_kind.items()]
            for what, (is_measured, rows, table) in costs.items():
                speeds.append({**where, "costs": what, "is_measured": is_measured, **best(tokens, table, rows)})
            if temperature:
                with_it, without = (_rounds(read, Tree(_OF_NOISE), with_noise=each) for each in (True, False))
                gain = {"with_noise": with_it.mean_acceptance_length, "without_noise": without.mean_acceptance_length}
                noise.append({**where, **gain})
    machine = describe_machine()
    by_depth = [(str(depth), str(depth), ".2f") for depth in range(1, most + 1)]
    show_lines("Tokens a round by depth", (*_WHERE, ("kind", "kind", ""), *by_depth), lengths)
    show_lines(f"{machine['processor']}, {machine['threads']} threads, float32", SPEEDS, speeds)
    show_lines(f"Mean acceptance lengths, {_OF_NOISE} draft tokens", NOISE, noise)
    settings = {name: getattr(options, name) for name in ("one_in", "new_tokens", "most")}
    record(options.json, settings=settings | {"of_noise": _OF_NOISE}, noise=noise, speeds=speeds, lengths=lengths)


def measure(pair: Pair, num_rows: int, most: int) -> CostTable:
    """Return what rounds of this many rows cost, by the measurements of an engine, up to the widest tree."""
    target, draft, parts = pair.target, pair.parts.draft, pair.parts
    assert draft is not None, "a pair has a draft"
    most_tokens = 1 << (max(tree.num_tokens for tree in trees(most)) - 1).bit_length()
    target.allocate(_WIDEST * num_rows, _MAX_MODEL_LEN, most_tokens)
    drafter = parts.make_drafter(0, target, _WIDEST * num_rows, most)
    target.hand_out(drafter.tap)
    steps = measure_costs(target, draft, _WIDEST * num_rows, 1).draft
    costs = replace(measure_costs(target, draft, num_rows, most_tokens), draft=steps)
    costs = with_overhead(costs, target, parts.make_drafter(0, target, num_rows, most), num_rows, most, COUPLED)
    target.hand_out(None)
    target.release()
    return costs


def best(tokens: Mapping[Tree, float], costs: CostTable, num_rows: int) -> dict[str, Any]:
    """Return the fastest chain and the fastest tree by the tokens of their rounds, and how they compare.

    `free_times_chain` is the fastest tree that takes no more time than the chain in it.
    """

    def speed(tree: Tree, like: Tree | None = None) -> float:
        return num_rows * tokens[tree] / (like or tree).seconds(costs, num_rows)

    chain, tree = (
        max((each for each in tokens if (each.width > 0) == is_wide), key=speed) for is_wide in (False, True)
    )
    return {
        "plain_speed": speed(Tree(0)),
        "chain": str(chain.depth),
        "chain_tokens": tokens[chain],
        "chain_speed": speed(chain),
        "tree": f"{tree.depth}, {tree.kind}",
        "tree_tokens": tokens[tree],
        "tree_speed": speed(tree),
        "tree_times_chain": speed(tree) / speed(chain),
        "free_times_chain": max(speed(each, Tree(each.depth)) for each in tokens) / speed(chain),
    }


def _rounds(texts: Seq[Text], tree: Tree, *, with_noise: bool = True) -> Counts:
    return sum((text.rounds(tree, with_noise=with_noise) for text in texts), Counts())


if __name__ == "__main__":
    main()
