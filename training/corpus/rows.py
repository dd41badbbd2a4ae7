"""Example: one text of the target, as tokens, with what decided them; and the translation of rows into examples."""

import hashlib
import struct
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

import pyarrow as pa

from decoding.noise import noise_key
from decoding.sampling_params import SamplingParams
from pipeline.errors import RowError
from pipeline.inputs.records import to_rows
from pipeline.storage.location import Location
from pipeline.storage.parquet import open_checked
from pipeline.text.codec import TextCodec
from training.corpus.files import CorpusFile, RunFacts
from training.corpus.options import CorpusOptions


@dataclass(frozen=True)
class Example:
    """A prompt and what the target wrote behind it.

    `noise_key` is that of the row in its run (`decoding.noise.noise_key`), so that the target's pick at each position
    can be computed again; None where it is not known. `params` are those of the run, with `max_tokens` lowered where
    the context ends first, as the engine lowers it.
    """

    prompt_token_ids: tuple[int, ...]
    output_token_ids: tuple[int, ...]  # never empty
    kind: str  # the value of corpus.kind_column, "all" without one
    noise_key: int | None
    params: SamplingParams


_BATCH_ROWS = 256
_OF_A_RUN = ("row_id", "sample", "prompt", "is_chat", "token_ids")
_IF_THERE = ("is_chat", "token_ids", "finish_reason", "stop_reason")  # of other Parquet
_SAMPLE_LIMIT = 1 << 30  # output tokens of texts whose limit is not known


@dataclass(frozen=True)
class RowReader:
    """How rows become examples."""

    options: CorpusOptions
    tokenizer: str  # its folder
    end_token_id: int | None  # what ends a text of the target

    def examples(self, file: CorpusFile, group: int, num_rows: int, held_out: bool | None) -> Iterator[Example]:
        """Yield the first `num_rows` rows of a row group that have a text, in order.

        `held_out` is that of `Corpus.examples`. Raises ValueError, naming the file, if it is damaged or has changed
        since the corpus was opened.
        """
        to_example = self._of_run if file.run is not None else self._of_plain
        for row in self._rows(file, group, num_rows):
            example = to_example(row, file)
            if example is None:
                continue
            if held_out is None or is_held_out(example.prompt_token_ids, self.options.held_out_share) == held_out:
                yield example

    def _rows(self, file: CorpusFile, group: int, num_rows: int) -> Iterator[dict[str, Any]]:
        options, columns = self.options, list(_OF_A_RUN)
        if file.run is None:
            output = "token_ids" if "token_ids" in file.columns else options.output_column
            columns = [options.prompt_column, output, *(name for name in _IF_THERE if name in file.columns)]
        columns += [options.kind_column] if options.kind_column else []
        location, left = Location.parse(file.name), num_rows
        try:
            with location.open_file() as stream:
                parquet = open_checked(stream)
                if stream.size() != file.size or parquet.metadata.num_row_groups <= group:
                    raise ValueError(
                        f"{file.name} has changed since the corpus was opened: it had {file.size} bytes, and has "
                        f"{stream.size()}; begin anew with the files as they are now"
                    )
                for batch in parquet.iter_batches(_BATCH_ROWS, row_groups=[group], columns=[*dict.fromkeys(columns)]):
                    for row in to_rows(batch.slice(0, left)):
                        if isinstance(row, RowError):
                            raise ValueError(f"{file.name}: {row.message}")
                        if any(isinstance(value, bytes) for value in row.values()):
                            raise ValueError(f"{file.name}: a column has bytes that are no text")
                        yield row
                    left -= batch.num_rows
                    if left <= 0:
                        return
        except pa.ArrowException as error:
            raise ValueError(f"{file.name}: damaged, or no Parquet file: {error}") from error

    def _of_run(self, row: Mapping[str, Any], file: CorpusFile) -> Example | None:
        facts = file.run
        assert facts is not None
        if not row["token_ids"]:
            return None
        prompt = _prompt_token_ids(self.tokenizer, row["prompt"], bool(row["is_chat"]))
        ordinal = file.first_ordinal + (row["row_id"] & 0xFFFFFFFF)
        key = noise_key(facts.seed, ordinal, row["sample"]) if facts.is_coupled else None
        return Example(prompt, tuple(row["token_ids"]), self._kind(row), key, _params_of(facts, len(prompt)))

    def _of_plain(self, row: Mapping[str, Any], file: CorpusFile) -> Example | None:
        text = row[self.options.prompt_column]
        if not text:
            return None
        is_chat = bool(row.get("is_chat"))
        prompt = _prompt_token_ids(self.tokenizer, str(text), is_chat)
        output = row.get("token_ids")
        if output is None and row.get(self.options.output_column):
            output = self._tokens_of_text(str(text), is_chat, prompt, row)
        if not output:
            return None
        return Example(prompt, tuple(output), self._kind(row), None, _plain_params(self.options.temperature))

    def _tokens_of_text(
        self, prompt: str, is_chat: bool, prompt_ids: tuple[int, ...], row: Mapping[str, Any]
    ) -> list[int]:
        """Return the tokens of an output that is text, with the end token where the text has ended by itself."""
        tokenizer, text = _codec(self.tokenizer).tokenizer, str(row[self.options.output_column])
        both = tokenizer(prompt + text, add_special_tokens=not is_chat, verbose=False)["input_ids"]
        if tuple(both[: len(prompt_ids)]) == prompt_ids:  # so that a space before a word belongs to it
            tokens = list(both[len(prompt_ids) :])
        else:  # the last token of the prompt would join the first of the text, or an end token follows each text
            tokens = list(tokenizer(text, add_special_tokens=False, verbose=False)["input_ids"])
        has_ended = row.get("finish_reason") in (None, "stop") and row.get("stop_reason") is None
        if tokens and has_ended and self.end_token_id not in (None, tokens[-1]):
            tokens.append(self.end_token_id)
        return tokens

    def _kind(self, row: Mapping[str, Any]) -> str:
        return "all" if self.options.kind_column is None else str(row[self.options.kind_column])


@lru_cache(maxsize=4)
def _codec(tokenizer: str) -> TextCodec:
    return TextCodec.load(tokenizer)


@lru_cache(maxsize=64)  # samples of a prompt follow each other
def _prompt_token_ids(tokenizer: str, prompt: str, is_chat: bool) -> tuple[int, ...]:
    return tuple(_codec(tokenizer).encode(prompt, is_chat))


def _params_of(facts: RunFacts, num_prompt_tokens: int) -> SamplingParams:
    """Return the run's parameters with the output limit that the engine gives to a prompt of this length."""
    limit = max(facts.max_model_len - num_prompt_tokens, facts.params.min_tokens, 1)
    return facts.params if facts.params.max_tokens <= limit else replace(facts.params, max_tokens=limit)


@lru_cache(maxsize=4)
def _plain_params(temperature: float) -> SamplingParams:
    return SamplingParams(temperature=temperature, max_tokens=_SAMPLE_LIMIT)


def is_held_out(prompt_token_ids: Sequence[int], share: float) -> bool:
    """Tell whether rows with this prompt are held out. A larger share holds out the same prompts, and more.

    All samples of a prompt fall on the same side, whatever the order of the rows, the files and the runs: else a draft
    would be evaluated on prompts that it has seen.
    """
    digest = hashlib.sha256(struct.pack(f"<{len(prompt_token_ids)}i", *prompt_token_ids)).digest()
    return int.from_bytes(digest[:8], "big") < share * 2**64
