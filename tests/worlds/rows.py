"""The rows of text worlds: what is asked of them, and what they have in common."""

import json
from collections.abc import Sequence as Seq
from dataclasses import replace
from pathlib import Path

from transformers import PreTrainedTokenizerFast

from decoding import SamplingParams, Sequence
from decoding.gpu.available import is_interpreted
from decoding.grammar.structured import Structured
from decoding.scope import Scope
from tests.decoding.grammar.tiny_grammars import RECORD, STRUCTURED
from tests.decoding.tiny import POISON, VOCAB_SIZE, numbered, random_prompts
from tests.worlds.text_world import RUN_SEED, rows_of

PAIRS = [(a, b) for a in range(VOCAB_SIZE) for b in range(VOCAB_SIZE) if (a + b) % 3 == 0]  # two in three may follow
TRIPLES = [(a, a % 5 + b, c) for a in range(VOCAB_SIZE) for b in range(20) for c in (1, 17)]
FORM_LENGTH = 6 if is_interpreted() else 30
PROMPTS = random_prompts([7, 1, 12, 3, 25, 1, 9, 2, 16, 5, 4, 31, 6, 10, 8, 2, 11, 3], seed=4)
# Every row has its own parameters; a prompt that repeats itself gives the n-gram drafter something to find.
PROMPTS[4] = [5, 6, 7, 8, 9] * 5
BRACKETS = 'start: item item*\nitem: "[" inside "]" | "{" inside "}"\ninside: W | item\nW: /[a-z]{1,3}/'
PARAMS = [
    SamplingParams(max_tokens=20, temperature=0.8),
    SamplingParams(max_tokens=24, temperature=0),
    SamplingParams(max_tokens=1, temperature=1.3, top_k=5),
    SamplingParams(max_tokens=17, temperature=0.7, top_p=0.8),
    SamplingParams(max_tokens=30, temperature=0.4, repetition_penalty=1.4),
    SamplingParams(max_tokens=2, temperature=1.0, min_p=0.1, presence_penalty=0.7),
    SamplingParams(max_tokens=22, temperature=0.9, top_k=12, top_p=0.9, min_p=0.02, frequency_penalty=0.5),
    SamplingParams(max_tokens=24, temperature=1.0, logit_bias={3: 4.0, 4: -100}, stop_token_ids=(11, 30)),
    SamplingParams(max_tokens=24, temperature=2.0, min_tokens=6, stop_token_ids=tuple(range(20))),
    SamplingParams(max_tokens=13, temperature=0, repetition_penalty=1.8, frequency_penalty=-0.4, presence_penalty=1.0),
    SamplingParams(max_tokens=3, temperature=0.6, seed=99),
    SamplingParams(max_tokens=19, temperature=1.0, repetition_penalty=0.7, top_p=0.6),
    SamplingParams(max_tokens=20, temperature=0.9, bad_words=[(a, b) for a in range(48) for b in range(a % 3, 48, 3)]),
    SamplingParams(max_tokens=18, temperature=0, allowed_token_ids=tuple(range(9, 30)), bad_words=[[9], (11, 12, 13)]),
    SamplingParams(max_tokens=24, temperature=0.8, structured=Structured(json_object=True), repetition_penalty=1.2),
    SamplingParams(max_tokens=24, temperature=0, structured=Structured(json_schema=RECORD)),
    SamplingParams(max_tokens=24, temperature=1.0, structured=Structured(grammar=BRACKETS), logprobs=2),
    SamplingParams(max_tokens=24, temperature=0.7, structured=Structured(regex="[a-d]{3,20}-[0-9]{2}"), top_p=0.9),
]
OBJECT = {"type": "object", "properties": {"id": {"type": "integer"}, "likes": {"type": "array"}}, "required": ["id"]}
TRAINED_FORMS = [
    Structured(json_object=True),
    Structured(json_object=True, disable_any_whitespace=True),
    Structured(json_schema={"type": "object", "additionalProperties": {"type": ["string", "object", "integer"]}}),
    Structured(json_schema=OBJECT),
    Structured(grammar='start: item+\nitem: "{" W (":" W)* "}" | " " W ":" W ";"\nW: /"[a-zA-Z ]*"/'),
    Structured(regex=r"\{(\"[a-z ]+\": \"?[A-Za-z0-9 ]+\"?,? ?)+\}"),
    Structured(choice=['{"order": "none"}', '{"id": 1, "name": "Ada"}', "no"]),
    None,
]
NUM_NEW_TOKENS, NUM_SAMPLES = 12, 5
LENGTHS, MAX_MODEL_LEN = [1, 3, 60, 64, 65], 80
if is_interpreted():
    _FEW = (0, 1, 4, 6, 7, 8, 12, 16)
    PROMPTS = [PROMPTS[row] for row in _FEW]
    PARAMS = [replace(PARAMS[row], max_tokens=6, min_tokens=min(PARAMS[row].min_tokens, 2)) for row in _FEW]
    NUM_NEW_TOKENS, NUM_SAMPLES = 4, 2
    LENGTHS, MAX_MODEL_LEN = [60, 64], 68


def mixed() -> list[Sequence]:
    return rows_of(PROMPTS, PARAMS)


def predicted(texts: Seq[Seq[int]]) -> list[Sequence]:
    """The mixed rows, whose texts these are, with predictions that are right, changed in places, another's, or none."""
    rows = mixed()
    for row, text in zip(rows, texts, strict=True):
        changed = [*text[:3], 7, *text[4:9], *text[11:13], 2, 2, *text[13:]]
        other = texts[(row.tag + 1) % len(texts)]
        row.prediction = tuple([text, changed, other, [*other[:4], *text], []][row.tag % 5])
    return rows


def forms() -> list[Sequence]:
    """Every grammar and none, each greedy and at temperature 0.8, and every other parameter now and then."""
    more = [{}, {"top_k": 5}, {"top_p": 0.8, "presence_penalty": 0.5}, {"min_p": 0.05, "logit_bias": {3: 5.0, 9: -100}}]
    kinds = [(temperature, kind) for temperature in (0, 0.8) for kind in (*STRUCTURED, None)]
    prompts = random_prompts([7, 1, 12, 3, 25, 1, 9, 2, 16, 5, 4, 31, 8, 6], seed=4)[: 4 if is_interpreted() else None]
    params = [
        SamplingParams(structured=kind, temperature=temperature, max_tokens=FORM_LENGTH, **more[row % 4])
        for row, (temperature, kind) in enumerate(kinds[: len(prompts)])
    ]
    return rows_of(prompts, params)


def forbidden() -> list[Sequence]:
    """Rows under bad words and lists of allowed ids, greedy and sampled, beside other parameters."""
    kinds = [
        {"bad_words": PAIRS},
        {"allowed_token_ids": tuple(range(0, VOCAB_SIZE, 2)), "bad_words": [*TRIPLES, (4,)]},
        {},
        {"allowed_token_ids": tuple(range(20)), "logprobs": 2},
    ]
    more = [{"temperature": 0}, {"temperature": 0.9}, {"top_k": 7}, {"top_p": 0.9, "repetition_penalty": 1.3}]
    fixed = {"stop_token_ids": (3, 8), "min_tokens": 4, "max_tokens": 6 if is_interpreted() else 26}
    prompts = random_prompts([7, 1, 12, 3, 25, 9, 2, 16], seed=4)[: 4 if is_interpreted() else None]
    params = [SamplingParams(**kinds[row % 4], **more[(row + row // 4) % 4], **fixed) for row in range(len(prompts))]
    return rows_of(prompts, params)


def samples() -> list[Sequence]:
    """Samples of few prompts, which share their beginnings and learn from each other."""
    params = SamplingParams(temperature=1.0, max_tokens=NUM_NEW_TOKENS)
    places = [(row, sample) for row in range(3) for sample in range(NUM_SAMPLES)]
    return [
        Sequence.create(PROMPTS[row], params, run_seed=RUN_SEED, row=row, sample=sample, tag=tag)
        for tag, (row, sample) in enumerate(places)
    ]


def near_limits() -> list[Sequence]:
    """The cache shows positions in buckets of 64, and drafts of longer rows run past the end of the slot."""
    params = SamplingParams(temperature=1.0, max_tokens=200, ignore_eos=True)
    return rows_of(random_prompts(LENGTHS, seed=7), [params] * len(LENGTHS))


def limited() -> list[Sequence]:
    """Rows that may draft less than their engine, or nothing; some are recorded."""
    rows = numbered(PROMPTS[:8], temperature=0.8, max_tokens=NUM_NEW_TOKENS)
    for number, row in enumerate(rows):
        row.tag, row.num_speculative_tokens = number, (0, None, 1, None, 2)[number % 5]
        row.rounds = [] if number % 3 == 0 else None
    return rows


def undecided() -> list[Sequence]:
    """Rows for a target whose best tokens tie: greedy ones, and sampled ones to which few tokens are left."""
    params = [
        {"temperature": 0},
        {"temperature": 0, "max_tokens": 12, "repetition_penalty": 1.3, "frequency_penalty": 0.2},
        {"temperature": 0.7, "max_tokens": 15},
        {"temperature": 0, "top_k": 3},
        *({"top_k": 1}, {"top_k": 3}, {"min_p": 1.0}, {"top_p": 0.05}),
    ]
    prompts = random_prompts([5, 1, 9, 3, 14, 2, 6, 4], seed=8)
    return rows_of(prompts, [SamplingParams(**{"max_tokens": 18, **fields}) for fields in params])


def poisoned() -> list[Sequence]:
    """Rows for a target that breaks on POISON: some have it in their prompts, some write it, and most do neither.

    In the forward that reads it, a value that is not finite spreads to the positions before it; some prompts share
    these.
    """
    prompts = random_prompts([6, 5, 1, 9, 4, 2, 7, 3], vocab_size=POISON, seed=9)
    prompts[1][2] = prompts[4][-1] = prompts[5][0] = POISON
    (head,) = random_prompts([34], vocab_size=POISON, seed=31)
    prompts += [[*head, *tail] for tail in ([POISON, 1, 2], [3, 4], [5], [POISON], [6, 7, 8], [POISON, 1, 9])]
    healthy = [SamplingParams(max_tokens=12, temperature=row % 2, logit_bias={POISON: -100.0}) for row in range(14)]
    prompts += random_prompts([5, 3, 8, 1, 2, 6], vocab_size=POISON, seed=3)
    return rows_of(prompts, [*healthy, *[SamplingParams(max_tokens=16, logit_bias={POISON: 1.0})] * 6])


def json_prompts(tokenizer: PreTrainedTokenizerFast) -> list[list[int]]:
    """The bundled prompts for records in JSON."""
    rows = map(json.loads, Path("examples/prompts.jsonl").read_text().splitlines())
    return [
        tokenizer.apply_chat_template(row["messages"], add_generation_prompt=True, return_dict=False)
        if "messages" in row
        else tokenizer.encode(row["prompt"])
        for row in rows
        if row["kind"] == "json"
    ]


def trained_forms(prompts: Seq[Seq[int]]) -> list[Sequence]:
    """Rows of JSON objects, in which texts of one shape meet, and then every form, some without noise."""
    asked = [(TRAINED_FORMS[0], 0.8)] * 6 + [(form, 0.8 * (row % 3 > 0)) for row, form in enumerate(TRAINED_FORMS)]
    params = [SamplingParams(structured=form, temperature=temperature, max_tokens=16) for form, temperature in asked]
    return rows_of([prompts[row % len(prompts)] for row in range(len(asked))], params)


def shared(head_length: int = 40) -> list[Sequence]:
    """Prompts with a common head, prompts that begin like others' outputs might, repeats, and strangers.

    The last rows have scopes, whose rows share nothing with others.
    """
    (head,) = random_prompts([head_length], seed=21)
    prompts = [
        *(head + tail for tail in random_prompts([3, 9, 1, 6], seed=22)),
        *random_prompts([1, 30, 2, 17], seed=23),
        *[head[:20] + tail for tail in random_prompts([5, 12], seed=24)],
        *[head[:1], head, head, head[:33]],
        *random_prompts([50, 4], seed=25),
    ]
    prompts.insert(3, prompts[5])
    params = [
        SamplingParams(max_tokens=4 + row % 9, temperature=row % 2) for row in range(len(prompts) + len(prompts[::2]))
    ]
    rows = rows_of([*prompts, *prompts[::2]], params)
    for number, row in enumerate(rows[len(prompts) :]):
        row.scope = Scope(str(number % 3), str(number % 2))
    return rows
