"""UnloadedEngine: what a run's engines would refuse, told by the files beside the target's weights."""

from __future__ import annotations

from dataclasses import dataclass

from actors.engines import backend_of
from actors.engines.loading import load_codec
from actors.settings import GeneratorSettings
from decoding.checkpoint.generation import end_token_ids_of
from decoding.checkpoint.supported import max_positions, read_config
from decoding.engine.options import settle_max_model_len
from decoding.engine.token_engine import Limits
from decoding.grammar.grammars import Grammars
from decoding.sequence import Sequence
from decoding.vocabulary.grammars import grammars_of
from pipeline.text.codec import TextCodec


@dataclass(frozen=True)
class UnloadedEngine:
    """The tokenizer and the limits of an engine whose models are not loaded."""

    settings: GeneratorSettings
    codec: TextCodec
    limits: Limits
    grammars: Grammars

    @classmethod
    def of(cls, settings: GeneratorSettings) -> UnloadedEngine:
        """Return the engine of settled settings. Raises ValueError for a tokenizer that does not load."""
        models = settings.models
        config = read_config(models.target)
        length = settle_max_model_len(settings.engine.max_model_len, max_positions(config))
        ends, vocab_size = end_token_ids_of(models.target, config), config.get_text_config().vocab_size
        grammars = grammars_of(models.tokenizer or models.target, vocab_size, ends)
        return cls(settings, load_codec(settings), Limits(length, vocab_size, ends), grammars)

    def problem_with(self, sequence: Sequence) -> str | None:
        """Return why the engine could not run this sequence; None if it could."""
        params = sequence.params
        of_backend = backend_of(self.settings).problem_with(params, self.limits.vocab_size)
        problem = self.limits.problem_with(sequence) or of_backend
        if problem is not None or params.structured is None:
            return problem
        return self.grammars.problem_with(params.structured)
