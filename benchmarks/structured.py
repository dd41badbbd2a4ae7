"""Measures what structured output costs, and what forced tokens bring: `python -m benchmarks.structured`.

The first table is masks: a vocabulary of 151,936 made-up tokens, JSON records that are followed token by token, and the
mask behind each token. Where the library xgrammar is installed, it does the same.

The second table is the bundled pair over its prompt for a person's record: without a form, and with the schema of such
records; with forced tokens as drafts and without. All ways run in turns, so that other work on the machine meets each
of them alike.
"""

import argparse
import json
import random
import string
import time
from collections.abc import Callable
from importlib.util import find_spec
from typing import Any

import torch
from transformers import AutoTokenizer

from benchmarks.harness import show
from decoding import Engine, EngineOptions, SamplingParams, Sequence
from decoding.engine.host_rounds import HostRounds
from decoding.grammar.definition import definition_of
from decoding.grammar.grammars import Grammars
from decoding.grammar.structured import Structured
from decoding.grammar.token_table import TokenTable

PAIR = "examples/tiny_pair"
VOCAB_SIZE = 151_936
TEXT = {"type": "string", "maxLength": 24}
SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {
        "name": TEXT,
        "age": {"type": "integer", "minimum": 0, "maximum": 120},
        "city": TEXT,
        "email": TEXT,
        "languages": {"type": "array", "items": TEXT, "minItems": 1, "maxItems": 3},
        "is_member": {"type": "boolean"},
    },
    "required": ["name", "age", "city", "email", "languages", "is_member"],
    "additionalProperties": False,
}
PERSON: dict[str, Any] = {  # as the bundled target writes one
    "type": "object",
    "properties": {
        "id": {"type": "integer"},
        "name": {"type": "string"},
        "age": {"type": "integer"},
        "city": {"type": "string"},
        "email": {"type": "string"},
        "active": {"type": "boolean"},
        "likes": {"type": "array", "items": {"type": "string"}},
    },
    "required": ["id", "name", "age", "city", "email", "active", "likes"],
    "additionalProperties": False,
}
RECORD = json.dumps(
    {
        "name": "Greta Olsen",
        "age": 41,
        "city": "Lyon",
        "email": "greta@example.org",
        "languages": ["French", "Danish"],
        "is_member": True,
    }
)


def made_up_tokens(num_tokens: int) -> list[bytes]:
    """Return an end token, all bytes, pieces of JSON, and words as long as those of real vocabularies."""
    chance, tokens = random.Random(0), {bytes([byte]): None for byte in range(256)}
    tokens |= dict.fromkeys([b'{"', b'":', b'",', b'"}', b'": "', b'", "', b'": [', b"],", b"true", b"false", b"null"])
    while len(tokens) < num_tokens - 1:
        word = "".join(chance.choices(string.ascii_letters, k=chance.choice((2, 3, 4, 5, 6, 7, 8))))
        tokens[(" " * chance.randint(0, 1) + word).encode()] = None
    return [b"<end>", *tokens]


def seconds_a_mask_of_ours(table: TokenTable, structured: Structured, tokens: list[int]) -> tuple[float, float]:
    """Return the seconds of compiling, and of a mask with its token, on the way through these tokens."""
    started = time.process_time()
    grammars = Grammars(lambda: table)
    matcher = grammars.matcher(structured)
    matcher.mask([])
    compiled = time.process_time()
    for length in range(len(tokens) + 1):
        matcher.mask(tokens[:length])
    return compiled - started, (time.process_time() - compiled) / (len(tokens) + 1)


def seconds_a_mask_of_xgrammar(
    vocabulary: list[bytes], schema: dict[str, Any], tokens: list[int]
) -> tuple[float, float]:
    """Return the same for xgrammar."""
    import xgrammar  # type: ignore[import-not-found]  # not among our packages

    info = xgrammar.TokenizerInfo(vocabulary, stop_token_ids=[0])
    compiler = xgrammar.GrammarCompiler(info, max_threads=1)
    bitmask = xgrammar.allocate_token_bitmask(1, len(vocabulary))
    started = time.process_time()
    compiled = compiler.compile_json_schema(json.dumps(schema), any_whitespace=True)
    matcher = xgrammar.GrammarMatcher(compiled)
    matcher.fill_next_token_bitmask(bitmask)
    ready = time.process_time()
    for token in tokens:
        assert matcher.accept_token(token)
        matcher.fill_next_token_bitmask(bitmask)
    return ready - started, (time.process_time() - ready) / len(tokens)


def print_masks(num_turns: int) -> None:
    """Print the first table: the least times of some turns."""
    vocabulary = made_up_tokens(VOCAB_SIZE)
    table = TokenTable.of_tokens(vocabulary, frozenset({0}))
    structured = Structured(json_schema=SCHEMA)
    tokens = table.tokenizer.tokenize_str(RECORD)
    assert definition_of(structured)
    ways: dict[str, Callable[[], tuple[float, float]]] = {
        "llguidance": lambda: seconds_a_mask_of_ours(table, structured, tokens)
    }
    if find_spec("xgrammar"):
        ways["xgrammar"] = lambda: seconds_a_mask_of_xgrammar(vocabulary, SCHEMA, tokens)
    found: dict[str, list[tuple[float, float]]] = {name: [] for name in ways}
    for _ in range(num_turns):
        for name, way in ways.items():
            found[name].append(way())
    rows = []
    for name, times in found.items():
        compiling, masking = (min(column) for column in zip(*times, strict=True))
        rows.append([name, f"{1e3 * compiling:.1f}", f"{1e6 * masking:.0f}", f"{1 / masking:,.0f}"])
    headings = ["library", "compile and first mask, ms", "a mask and its token, us", "masks a second"]
    show(f"JSON record of {len(tokens)} tokens, vocabulary of {VOCAB_SIZE:,}, one thread", headings, rows)


def sequences(num_rows: int, structured: Structured | None, seed: int) -> list[Sequence]:
    """Return rows that ask the bundled pair for a record of a person."""
    tokenizer = AutoTokenizer.from_pretrained(f"{PAIR}/target")
    params = SamplingParams(structured=structured, temperature=0.8, max_tokens=120)
    made = []
    for row in range(num_rows):
        chat = [{"role": "user", "content": "Give me a record of a person in JSON."}]
        prompt = tokenizer.apply_chat_template(chat, add_generation_prompt=True, return_dict=False)
        made.append(Sequence.create(prompt, params, run_seed=seed, row=row))
    return made


def print_rounds(num_rows: int, num_turns: int, draft_length: str) -> None:
    """Print the second table: sums over all turns. Each way has an engine of its own, as lookups learn from texts."""
    tight = Structured(json_schema=PERSON, disable_any_whitespace=True)
    loose = Structured(json_schema=PERSON)
    ways = {
        "no form": (None, True),
        "schema": (loose, True),
        "schema, not forced": (loose, False),
        "tight schema": (tight, True),
        "tight schema, not forced": (tight, False),
    }
    rows = []
    forces = HostRounds._forces
    for drafter in ("none", "suffix", "model"):
        options = EngineOptions(drafter=drafter, num_slots=16, num_speculative_tokens=8, draft_length=draft_length)  # type: ignore[arg-type]
        draft = f"{PAIR}/draft" if drafter == "model" else None
        engines = {name: Engine.load(f"{PAIR}/target", draft, options) for name in ways}
        sums = {name: [0.0, 0.0, 0.0] for name in ways}
        for turn in range(num_turns + 1):  # the first one warms up
            for name, (structured, is_forced) in ways.items():
                HostRounds._forces = forces if is_forced else lambda self, rows: False  # type: ignore[method-assign]
                made = sequences(num_rows, structured, turn)
                started = time.process_time()
                list(engines[name].stream(made))
                seconds = time.process_time() - started
                assert not any(each.error for each in made), made[0].error
                tokens = sum(len(each.output_token_ids) for each in made)
                rounds = sum(each.num_rounds for each in made)
                if turn:
                    sums[name] = [a + b for a, b in zip(sums[name], (seconds, tokens, rounds), strict=True)]
        HostRounds._forces = forces  # type: ignore[method-assign]
        for name, (sum_seconds, num_tokens, num_rounds) in sums.items():
            rows.append([drafter, name, f"{num_tokens / sum_seconds:,.0f}", f"{num_tokens / num_rounds:.2f}"])
    headings = ["drafter", "output", "tokens a CPU second", "tokens a round"]
    show(f"bundled pair, {num_rows} rows, 16 slots, drafts of up to 8 ({draft_length})", headings, rows)


def main() -> None:
    parser = argparse.ArgumentParser(description="Measure structured output.")
    parser.add_argument("--rows", type=int, default=32)
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--draft-length", default="adaptive", choices=("adaptive", "fixed"))
    parser.add_argument("--only", choices=("masks", "rounds"))
    options = parser.parse_args()
    torch.set_num_threads(1)
    if options.only != "rounds":
        print_masks(options.turns)
    if options.only != "masks":
        print_rounds(options.rows, options.turns, options.draft_length)


if __name__ == "__main__":
    main()
