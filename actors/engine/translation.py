"""The one place where rows become sequences, and sequences become rows."""

from collections.abc import Callable
from collections.abc import Sequence as Seq
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from actors.engine.answer_grammar import with_answer_grammar
from actors.engine.row_options import RowOptions
from actors.engine.vocabulary import with_bad_word_ids
from actors.settings import GeneratorSettings
from decoding.common_prefix import common_prefix
from decoding.drafters.lookups.prediction import Prediction
from decoding.grammar.definition import problem_with
from decoding.sampling_params import SamplingParams
from decoding.scope import ONE_FOR_ALL, Scope
from decoding.sequence import Sequence, TokenLogprobs
from pipeline.errors import FieldError, RowError
from pipeline.inputs.rows import InputRow
from pipeline.run.earlier_rows import EarlierText
from pipeline.schema import REUSE_COLUMNS
from pipeline.text.chat import ChatPrompt
from pipeline.text.codec import TextCodec
from pipeline.text.text_behind import StopStrings, TextBehind

_NO_OPTIONS = RowOptions()


@dataclass(frozen=True)
class EncodedRow:
    """An input row with its prompt and its samples as sequences, one for each of 0 .. n - 1, or of `best_of`."""

    row: InputRow
    prompt: ChatPrompt
    sequences: list[Sequence]
    make: Callable[..., Sequence]  # of (sample=, attempt=), as the first attempts were made
    options: RowOptions = _NO_OPTIONS
    params: SamplingParams | None = None  # what the row asks for, where fewer samples are shown than drawn
    earlier: list[EarlierText] = field(default_factory=list)  # of its samples, for their predictions
    found: dict[int, tuple[int, RowError | None]] = field(default_factory=dict)  # tries of a sample, what a check said

    @property
    def shown(self) -> Seq[Sequence]:
        """The samples that become generations: all, or those whose tokens are the likeliest on average."""
        if self.params is None:
            return self.sequences
        return sorted(self.sequences, key=lambda sequence: -mean_logprob(sequence.logprobs))[: self.params.n]


def encode_row(
    row: InputRow, ordinal: int, codec: TextCodec, settings: GeneratorSettings, scope: Scope = ONE_FOR_ALL
) -> EncodedRow:
    """Make the row's sequences. `ordinal` is its place in the whole input and decides its noise. Raises RowError."""
    params = row_params(settings.sampling, row.overrides, codec)
    prompt, options = codec.row_prompt(row), RowOptions.of(row)
    try:
        options.check(params, settings.engine)
        prompt = options.kept(prompt, params.max_tokens, settings.engine.max_model_len, codec)
    except FieldError as error:
        raise error.inside("body.") from error
    params, prompt = with_answer_grammar(params, prompt, codec)
    asked, num_samples = params, options.best_of or params.n
    if num_samples > asked.n:
        params = replace(params, logprobs=params.logprobs or 0)  # which samples are best is decided by them
    stop = StopStrings(options.shown_codec(codec), params.stop, prompt.token_ids).find if params.stop else None
    make = partial(
        Sequence.create,
        prompt.token_ids,
        params,
        run_seed=settings.seed,
        row=ordinal,
        stop_condition=stop,
        scope=scope,
        num_speculative_tokens=options.num_speculative_tokens,
    )
    sequences = [make(sample=sample) for sample in range(num_samples)]
    return EncodedRow(row, prompt, sequences, make, options, asked if num_samples > asked.n else None)


def row_params(default: SamplingParams, overrides: dict[str, Any], codec: TextCodec) -> SamplingParams:
    """Return the run's parameters with the row's own in their place, with token ids for the texts of bad words.

    Raises RowError (stage "params").

    A row whose `structured` is false has no form, whatever that of the run: null is what Parquet has for no value.
    """
    if overrides.get("structured") is False:
        overrides = {**overrides, "structured": None}
    unknown = sorted(overrides.keys() - SamplingParams.__dataclass_fields__.keys())
    if unknown:
        known = ", ".join(SamplingParams.__dataclass_fields__)
        raise RowError("params", f"unknown sampling parameters {unknown}; known are {known}")
    try:
        params = with_bad_word_ids(replace(default, **overrides) if overrides else default, codec)
    except ValueError as error:
        raise RowError("params", str(error)) from error
    if "structured" in overrides and params.structured and (problem := problem_with(params.structured)):
        raise RowError("params", problem)
    return params


def decode_row(encoded: EncodedRow, codec: TextCodec) -> list[dict[str, Any]]:
    """Return the generation rows of a row's finished samples, in the order of `schema.generations_schema`.

    Raises RowError (stage "generate") if one of them failed: a row is whole or an error.
    """
    for sequence in encoded.sequences:
        if sequence.finish_reason == "error":
            raise RowError("generate", str(sequence.error))
    return [generation_row(encoded, sample, sequence, codec) for sample, sequence in enumerate(encoded.shown)]


def mean_logprob(logprobs: Seq[TokenLogprobs]) -> float:
    """Return the mean log-probability of a sample's tokens."""
    return sum(entry.logprob for entry in logprobs) / max(1, len(logprobs))


def generation_row(encoded: EncodedRow, sample: int, sequence: Sequence, codec: TextCodec) -> dict[str, Any]:
    """Return the generation row of a finished sample that has not failed."""
    row, options = encoded.row, encoded.options
    hides_logprobs = encoded.params is not None and encoded.params.logprobs is None
    return {
        "row_id": row.row_id,
        "sample": sample,
        "id": row.user_id,
        "prompt": encoded.prompt.text,
        "is_chat": row.messages is not None,
        "text": sequence_text(options.shown_codec(codec), sequence, keeps_stop=options.include_stop_str_in_output),
        "stop_reason": None if sequence.stop_reason is None else str(sequence.stop_reason),
        **token_columns(sequence),
        **reuse_columns(sequence),
        **({"logprobs": None, "top_logprobs": None} if hides_logprobs else {}),
        **answer_parts(encoded.prompt, sequence, f"{row.row_id}:{sample}", codec, options),
        **row.carried,
    }


def token_columns(sequence: Sequence) -> dict[str, Any]:
    """Return the columns of a finished sample that follow from its tokens and rounds alone."""
    has_logprobs = sequence.params.logprobs is not None
    return {
        "token_ids": sequence.output_token_ids,
        "finish_reason": sequence.finish_reason,
        "num_prompt_tokens": len(sequence.prompt_token_ids),
        "num_cached_tokens": sequence.num_cached_tokens,
        "num_output_tokens": len(sequence.output_token_ids),
        "num_rounds": sequence.num_rounds,
        "num_draft_tokens": sequence.num_draft_tokens,
        "num_accepted_tokens": sequence.num_accepted_tokens,
        "accepted_per_position": sequence.accepted_per_position,
        "logprobs": [entry.logprob for entry in sequence.logprobs] if has_logprobs else None,
        "top_logprobs": [top_logprobs(entry.top) for entry in sequence.logprobs] if has_logprobs else None,
        "draft_version": sequence.draft_version,
        "draft_rounds": draft_rounds(sequence),
    }


def reuse_columns(sequence: Sequence) -> dict[str, int | None]:
    """Return the columns that say what became of a finished sample's earlier text."""
    earlier, written = list(sequence.prediction), sequence.output_token_ids
    if not earlier:
        return dict.fromkeys((column.name for column in REUSE_COLUMNS), None)
    prediction = Prediction(earlier)
    prediction.read(written)
    counts = len(earlier), common_prefix(earlier, written), prediction.num_right
    return dict(zip((column.name for column in REUSE_COLUMNS), counts, strict=True))


def draft_rounds(sequence: Sequence) -> list[dict[str, Any]] | None:
    """Return a sample's rounds as a cell of the column `draft_rounds` has them; None if they were not recorded."""
    if sequence.rounds is None:
        return None
    return [
        {"num_accepted_tokens": each.num_accepted, "rejected_token_ids": list(each.rejected_token_ids)}
        for each in sequence.rounds
    ]


def answer_parts(
    prompt: ChatPrompt, sequence: Sequence, seed: str, codec: TextCodec, options: RowOptions = _NO_OPTIONS
) -> dict[str, Any]:
    """Return the parts of an answer, for the columns `schema.PART_COLUMNS`; `seed` decides the ids of its calls."""
    form = prompt.form
    shown = options.shown_codec(codec, has_parts=not form.is_plain)
    text = sequence_text(shown, sequence, keeps_stop=options.include_stop_str_in_output)
    if form.is_plain:
        return {"content": text, "reasoning": None, "tool_calls": None}
    answer = form.read(text)
    calls = [
        {"id": form.new_call_id(f"{seed}:{index}"), "name": call.name, "arguments": call.arguments}
        for index, call in enumerate(answer.calls)
    ]
    return {"content": answer.content, "reasoning": answer.reasoning, "tool_calls": calls or None}


def sequence_text(codec: TextCodec, sequence: Sequence, *, keeps_stop: bool = False) -> str:
    """Return the text of a finished sequence, as `ended_text` does."""
    ids, stop = (sequence.prompt_token_ids, sequence.output_token_ids), sequence.params.stop
    return ended_text(codec, *ids, stop, sequence.finish_reason, sequence.stop_reason, keeps_stop=keeps_stop)


def ended_text(
    codec: TextCodec,
    prompt_token_ids: Seq[int],
    token_ids: Seq[int],
    stop: tuple[str, ...],
    finish_reason: str | None,
    stop_reason: str | int | None,
    *,
    keeps_stop: bool = False,
) -> str:
    """Return the text of finished tokens behind a prompt, without the stop string that ended it unless `keeps_stop`.

    A text that shows special tokens does not show the end token.
    """
    if isinstance(stop_reason, str):
        text = StopStrings(codec, stop, prompt_token_ids).cut(token_ids, stop_reason)
        return text + (stop_reason if keeps_stop else "")
    if finish_reason == "stop" and not keeps_stop and token_ids and token_ids[-1] in codec.shown_ids:
        token_ids = token_ids[:-1]
    return TextBehind(codec, prompt_token_ids).decode(token_ids)


def top_logprobs(top: Seq[tuple[int, float]]) -> list[dict[str, Any]]:
    """Return likely tokens, best first, as a cell of the column `top_logprobs` has them."""
    return [{"token_id": token_id, "logprob": logprob} for token_id, logprob in top]
