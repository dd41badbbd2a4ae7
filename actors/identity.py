"""Identity of a run: everything that decides which tokens come out, and what run.json says beside it."""

import platform
from collections.abc import Mapping
from dataclasses import asdict, replace
from importlib.metadata import version
from typing import Any

import torch

from actors.engines import backend_of
from actors.settings import ChatSettings, GeneratorSettings
from decoding.checkpoint.gguf_file import origin
from pipeline.inputs.files import InputFile, inputs_digest
from pipeline.inputs.options import InputOptions
from pipeline.run.fingerprint import model_fingerprint, text_fingerprint
from pipeline.text.codec import TextCodec


def run_identity(
    settings: GeneratorSettings, options: InputOptions, files: list[InputFile], codec: TextCodec
) -> dict[str, Any]:
    """Return everything that decides which tokens come out, which may not change while a run lasts.

    Machines are not in it. The drafter is in it only where the text may depend on it: not coupled, or vLLM's.
    """
    return engine_identity(settings, codec) | rows_identity(settings, options, files)


def rows_identity(settings: GeneratorSettings, options: InputOptions, files: list[InputFile]) -> dict[str, Any]:
    """Return the part of a run's identity that is about its rows: which they are, and how they are sampled."""
    sampling = {name: value for name, value in asdict(settings.sampling).items() if name != "seed"}
    sampling["logit_bias"] = {str(token): bias for token, bias in sampling["logit_bias"].items()}
    for name in ("allowed_token_ids", "bad_words"):  # runs were begun before there were these
        if not sampling[name]:
            del sampling[name]
    del sampling["structured"]
    if settings.sampling.structured is not None:
        sampling["structured"] = settings.sampling.structured.as_dict()
    read = asdict(options)
    if read["csv_separator"] == ",":  # runs were begun before there was another
        del read["csv_separator"]
    marks = read.pop("text_marks")
    read["prompts_are"] = "text" if marks is None else "chat"
    return {
        "input": {**read, **({"text_marks": marks} if marks else {}), "files": inputs_digest(files)},
        "sampling": sampling,
        "seed": settings.seed,
    }


def engine_identity(settings: GeneratorSettings, codec: TextCodec) -> dict[str, Any]:
    """Return the part of a run's identity that is about its models and its engine. Every byte of weights is read."""
    made_of = origin(settings.models.target)
    return {
        **backend_of(settings).identity(model_fingerprint),
        **({"target_gguf": made_of} if made_of else {}),
        **chat_identity(settings.chat, codec),
    }


def chat_identity(settings: ChatSettings, codec: TextCodec) -> dict[str, Any]:
    """Return everything that decides which prompt a chat becomes."""
    formats = {name for name in ("tool_calls", "reasoning") if getattr(settings, name) == "auto"}
    chat = {name: value for name, value in asdict(settings).items() if name not in formats | {"moment"}}
    if chat["template_name"] is None:  # runs were begun before there was this
        del chat["template_name"]
    identity: dict[str, Any] = {"chat": {**chat, "chat_template": text_fingerprint(codec.templates.text)}}
    return identity | {"moment": settings.moment} if codec.templates.reads_clock else identity


def as_begun(identity: Mapping[str, Any], begun: Mapping[str, Any]) -> dict[str, Any]:
    """Leave out of an identity the fields that were added to identities after the run of `begun` had begun."""
    own = {name: value for name, value in identity.items() if name != "moment" or name in begun}
    if "drafter" in own and "draft_length" not in begun.get("drafter", {}):
        own["drafter"] = {name: value for name, value in own["drafter"].items() if name != "draft_length"}
    if own.get("input", {}).get("prompts_are") == "text" and "prompts_are" not in begun.get("input", {}):
        own["input"] = {name: value for name, value in own["input"].items() if name != "prompts_are"}
    return own


def prompts_as_begun(options: InputOptions, begun: Mapping[str, Any]) -> InputOptions:
    """Return the options with prompts as they are in the run of identity `begun`; at first they were always texts."""
    is_text = begun["input"].get("prompts_are", "text") == "text"
    return replace(options, text_marks=None if is_text else tuple(begun["input"].get("text_marks", ())))


def described_run(settings: GeneratorSettings, identity: Mapping[str, Any], exact: str) -> dict[str, Any]:
    """Return the entries of run.json about the models, the programs and their promise, beside the run's own."""
    return {
        "identity": dict(identity),
        "has_draft_version": True,
        "models": asdict(settings.models),
        "versions": {**library_versions(), **backend_of(settings).versions()},
        "exact": exact,
    }


def library_versions() -> dict[str, str]:
    """Return the versions of Python and of the libraries that runs and drafts are made with."""
    others = {name: version(name) for name in ("ray", "transformers", "pyarrow")}
    return {"python": platform.python_version(), "torch": torch.__version__, **others}  # torch's says which CUDA it has
