"""RunFacts: what a run says about its texts, and whether they are texts of this target."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from actors.engine.bad_words import with_bad_word_ids
from decoding.checkpoint.supported import max_positions, read_config
from decoding.engine.load import settle_max_model_len
from decoding.sampling_params import SamplingParams
from pipeline.run.directory import RunDirectory
from pipeline.run.fingerprint import model_fingerprint, tokenizer_fingerprint
from pipeline.text.codec import TextCodec


@dataclass(frozen=True)
class Fingerprints:
    """What a run's texts depend on, as run.json names it, for the models that a draft is trained for."""

    target: str
    tokenizer: str

    @classmethod
    def of(cls, target: str, tokenizer: str) -> Fingerprints:
        """Read every byte of these folders. Raises ValueError if one has no model, or no tokenizer."""
        return cls(model_fingerprint(target), tokenizer_fingerprint(tokenizer))


@dataclass(frozen=True)
class RunFacts:
    """What decides the tokens of a run's rows."""

    path: str
    digest: str  # of what decides the tokens
    seed: int
    params: SamplingParams
    dtype: str
    is_coupled: bool  # whether the rows are a function of their noise keys
    max_model_len: int

    @classmethod
    def of(cls, run_directory: RunDirectory, target: str, expected: Fingerprints, codec: TextCodec) -> RunFacts:
        """Read them from run.json. Raises ValueError if the run is one of another target, tokenizer or template.

        A template that the run was given in place of the tokenizer's own is in the text of its prompts.
        """
        path, identity = run_directory.location.name, run_directory.run["identity"]
        _refuse_others(path, run_directory.run, expected)
        if run_directory.has("scores"):
            raise ValueError(f"{path} is a run of task 'score', which wrote no text; name runs that wrote theirs")
        if identity["sampling"].get("structured") is not None:
            raise ValueError(
                f"{path} is a run with sampling.structured, whose texts are those of the target under a grammar, and a "
                "draft is judged and trained without one; name runs without it"
            )
        positions = max_positions(read_config(target))
        return cls(
            path=path,
            digest=run_directory.identity_digest,
            seed=identity["seed"],
            params=with_bad_word_ids(SamplingParams(**identity["sampling"]), codec),
            dtype=identity["dtype"],
            is_coupled=identity["verification"] == "coupled",
            max_model_len=settle_max_model_len(identity["max_model_len"], positions),
        )


def _refuse_others(path: str, run: dict[str, Any], expected: Fingerprints) -> None:
    """Raise ValueError if the run's texts are not those of the expected target, tokenizer and chat template."""
    identity = run["identity"]
    models = run.get("models", {})
    if identity["target"] != expected.target:
        raise ValueError(
            f"{path} is a run of another target, {models.get('target', 'which it does not name')}: its fingerprint is "
            f"{identity['target'][:12]}, and that of models.target {expected.target[:12]}; a draft learns from the "
            "texts of its own target alone"
        )
    if identity["tokenizer"] != expected.tokenizer:
        named = models.get("tokenizer") or models.get("target", "which it does not name")
        raise ValueError(
            f"{path} is a run with another tokenizer or chat template, {named}: its fingerprint is "
            f"{identity['tokenizer'][:12]}, and that of the tokenizer here {expected.tokenizer[:12]}; set "
            "models.tokenizer to the run's"
        )
