"""The work of `dray models`: a tiny random model of each of transformers' causal language models is built and compared.

A class is tried with its default options, made tiny, and with options as models of it were published, which are tiny in
`published_options.json` already: kinds of attention, positions, layers and norms are those of a published model.
"""

from __future__ import annotations

import argparse
import json
import logging
import random
import sys
from collections.abc import Callable, Iterable, Iterator
from collections.abc import Sequence as Seq
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from functools import cache, partial
from multiprocessing import get_context
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Literal, TypeVar, cast

import torch
import transformers
from rich.console import Console
from transformers import AutoModelForCausalLM, PretrainedConfig, PreTrainedModel
from transformers.models.auto.configuration_auto import CONFIG_MAPPING
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

from decoding.checkpoint.miniature import miniature
from decoding.checkpoint.supported import check_config
from decoding.choices import DRAFTERS, NEED_A_HEAD
from decoding.engine.load import Parts, load_parts
from decoding.engine.options import EngineOptions
from decoding.families.family import FAMILIES
from decoding.network.reference import Reference
from decoding.sampling_params import SamplingParams
from decoding.sequence import Sequence
from jobs.proving.comparison import Setting, findings

_WRONG = ("wrong", "crash")
_MODELS_AT_ONCE = 32  # then new processes go on: modules and random models stay in memory otherwise
_STYLES = {"exact": "green", "wrong": "red", "crash": "red"}


def try_models(options: argparse.Namespace) -> int:
    """Try the models, print a line for each as it is done, and return the exit code."""
    if unknown := sorted(set(options.types) - set(model_types())):
        print(f"error: transformers {transformers.__version__} has no causal model {unknown[0]!r}", file=sys.stderr)
        return 2
    if options.processes < 1:
        print(f"error: --processes is {options.processes}; use 1 or more", file=sys.stderr)
        return 2
    if options.write is not None and not Path(options.write).parent.is_dir():
        print(f"error: --write {options.write!r} is in no folder that exists", file=sys.stderr)
        return 2
    console, found = Console(), []
    for family in _tried(names_of(options.types or model_types()), options.processes):
        found.append(family)
        what = family.reason or f"{family.num_tokens:,} tokens, {family.num_accepted_tokens:,} of them drafted"
        console.print(f"[{_STYLES.get(family.verdict, 'yellow')}]{family.verdict:9}[/] {family.name:44} ", end="")
        console.print(what, highlight=False, markup=False, soft_wrap=True)
    console.print(_summary(found), style="bold", highlight=False)
    if options.write is not None:
        Path(options.write).write_text(_page(found))
    return int(any(family.verdict in _WRONG for family in found))


def _tried(names: Seq[str], num_processes: int) -> Iterator[Family]:
    for start in range(0, len(names), _MODELS_AT_ONCE):
        some, num_done = names[start : start + _MODELS_AT_ONCE], 0
        try:
            with _processes(min(num_processes, len(some))) as processes:
                for family in processes.map(try_family, some):
                    num_done += 1
                    yield family
        except BrokenProcessPool:  # one of those that were left killed its process
            yield from map(_tried_alone, some[num_done:])


def _tried_alone(name: str) -> Family:
    try:
        with _processes(1) as processes:
            return processes.submit(try_family, name).result()
    except BrokenProcessPool:
        return Family(name, "", "crash", "it killed its process")


def _processes(num_processes: int) -> ProcessPoolExecutor:
    return ProcessPoolExecutor(num_processes, get_context("spawn"), _begin)


def _begin() -> None:
    torch.set_num_threads(1)
    logging.disable(logging.WARNING)
    transformers.utils.logging.disable_progress_bar()


def _summary(found: Seq[Family]) -> str:
    counts = {name: sum(family.verdict == name for family in found) for name in _MEANINGS}
    num_tokens = sum(family.num_tokens for family in found)
    listed = ", ".join(f"{count} {name}" for name, count in counts.items() if count or name in _WRONG)
    num_sets = sum(family.name in published() for family in found)
    tried = f"{len(found) - num_sets} classes of transformers {transformers.__version__}"
    tried += f" and {num_sets} sets of published options" if num_sets else ""
    return f"{tried}: {listed}; {num_tokens:,} tokens compared"


_MEANINGS = {
    "exact": "Every drafter writes, token for token, what transformers' own code writes alone.",
    "refused": "The engine refuses them, for the reason that it gives.",
    "not tried": "No tiny model of them can be made from the default configuration of their class, or these options.",
    "wrong": "A token differs.",
    "crash": "Something failed otherwise.",
}
_HEAD = """\
# Models

<!-- Generated by `make models`; do not edit. -->

`dray models` builds a tiny random model of every causal language model class in the installed transformers,
and more of them with options as models of the class were published: their kinds of attention, positions, layers and
norms, in small sizes (`jobs/proving/published_options.json`). It loads each as a run does. The probe decides whether it
runs. Then the texts of all drafters, with one slot and with several, greedy and sampled, are compared with
those of transformers' own code, in float32. A class that a newer transformers adds is decided in the same way. A real
model of an exact class can still be refused, if the probe finds it otherwise when it is loaded; `dray prove`
compares with *your* weights ([the promise](promise.md)).
"""
_FUSED = """\
On a CPU the layers of {} run fused by their description (`decoding/families/family.py`), and all others by \
transformers' own code ([Speed](speed.md#on-cpu)).
"""


def _page(found: Seq[Family]) -> str:
    fused = ", ".join(f"`{name}`" for name in sorted(FAMILIES))
    lines = [_HEAD, _FUSED.format(fused), f"{_summary(found)}.\n"]
    for verdict, meaning in _MEANINGS.items():
        families = [family for family in found if family.verdict == verdict]
        if not families:
            continue
        lines += [f"## {verdict.capitalize()}\n", f"{meaning}\n"]
        if verdict == "exact":
            lines += [_listed(family.name for family in families if family.name not in published())]
            lines += ["With published options:\n"]
            lines += [_listed(family.name for family in families if family.name in published())]
        else:
            lines += ["| model type | why |", "| --- | --- |"]
            lines += [f"| `{family.name}` | {family.reason.replace('|', '/')} |" for family in families]
            lines += [""]
    return "\n".join(lines)


def _listed(names: Iterable[str]) -> str:
    return ", ".join(f"`{name}`" for name in names) + "\n"


Verdict = Literal["exact", "refused", "not tried", "wrong", "crash"]

_Result = TypeVar("_Result")
_PROMPT_LENGTHS = (3, 30, 9, 17)  # tokens; a miniature's windows have 12
_MAX_TOKENS = 20
_DISTURBANCE = 0.02  # of the draft's weights, relative to their size, so that some of its tokens are rejected
_OPTIONS = EngineOptions(drafter="model", draft_length="fixed")
# What the default configuration of a class leaves open, and its network needs.
_ROPE = {"rope_type": "default", "rope_theta": 1e4}
_SETTINGS: dict[str, dict[str, Any]] = {
    "cohere_compass_text": {"rope_parameters": {"full_attention": _ROPE}},
    "dbrx": {"attn_config": {"clip_qkv": 8.0, "kv_n_heads": 8, "rope_theta": 1e4}},
    "deepseek_v2": {"num_experts_per_tok": 6},
    "dots1": {"n_routed_experts": 8, "n_shared_experts": 1, "num_experts_per_tok": 2},
    "lfm2_moe": {"layer_types": ["conv", "full_attention"] * 16},
    "reformer": {"axial_pos_embds": False},
    "xmod": {"default_language": "en_XX"},
}


@dataclass(frozen=True)
class Family:
    """A model type, or options of one that were published, its class, and what was found."""

    name: str
    class_name: str
    verdict: Verdict
    reason: str = ""  # of every verdict but "exact"
    num_tokens: int = 0  # that were compared
    num_accepted_tokens: int = 0


def model_types() -> list[str]:
    """Return the types of all causal language models that the installed transformers knows."""
    return sorted(MODEL_FOR_CAUSAL_LM_MAPPING_NAMES)


@cache
def published() -> dict[str, dict[str, Any]]:
    """Return options as they were published: of each set, by its name, the model type and the options."""
    sets: dict[str, dict[str, Any]] = json.loads(Path(__file__).with_name("published_options.json").read_bytes())
    return {name: each for name, each in sets.items() if each["model_type"] in MODEL_FOR_CAUSAL_LM_MAPPING_NAMES}


def names_of(types: Iterable[str]) -> list[str]:
    """Return the names to try for these model types: each type, and behind it the options of it that were published."""
    wanted = set(types)
    return sorted([*wanted, *(name for name, each in published().items() if each["model_type"] in wanted)])


def try_family(name: str) -> Family:
    """Build a tiny random model of this type, or with these published options, and compare what every drafter writes.

    It is compared with what transformers' own code writes.
    """
    model_type = published()[name]["model_type"] if name in published() else name
    class_name, failed = str(MODEL_FOR_CAUSAL_LM_MAPPING_NAMES[model_type]), "not tried"
    with TemporaryDirectory() as folder, torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        try:
            is_published = name in published()
            options = published()[name]["options"] if is_published else _SETTINGS.get(model_type, {})
            config: PretrainedConfig = CONFIG_MAPPING[model_type](**options)
            # BERT and its kin read both ways otherwise.
            if not is_published and hasattr(config, "is_decoder") and not config.is_encoder_decoder:
                config = CONFIG_MAPPING[model_type](**options, is_decoder=True)
            _or_refused(lambda: check_config(config, model_type))
            target, draft = _saved_pair(config if is_published else miniature(config), Path(folder))
            failed = "crash"
            parts = _or_refused(lambda: load_parts(target, draft, _OPTIONS, "cpu", "float32"))
            return _compared(name, class_name, target, parts)
        except _RefusedError as error:
            return Family(name, class_name, "refused", _in_a_line(error, model_type, folder))
        except Exception as error:  # noqa: BLE001 (whatever it is, it is the result)
            reason = f"{type(error).__name__}: {_in_a_line(error, model_type, folder)}"
            return Family(name, class_name, cast("Verdict", failed), reason)


class _RefusedError(Exception):
    """The engine does not run this model, and says why."""


def _or_refused(work: Callable[[], _Result]) -> _Result:
    try:
        return work()
    except ValueError as error:
        raise _RefusedError(str(error)) from error


def _saved_pair(config: PretrainedConfig, folder: Path) -> tuple[str, str]:
    """Save a tiny random model and one that is a little different; return their folders."""
    network: PreTrainedModel = AutoModelForCausalLM.from_config(config)
    network.float().eval()
    with torch.inference_mode():
        network(input_ids=torch.zeros(1, max(_PROMPT_LENGTHS), dtype=torch.long), use_cache=True)
    network.save_pretrained(folder / "target")
    with torch.no_grad():
        for weights in network.parameters():
            weights += _DISTURBANCE * weights.abs().mean() * torch.randn_like(weights)
    network.save_pretrained(folder / "draft")
    return str(folder / "target"), str(folder / "draft")


def _compared(name: str, class_name: str, target: str, parts: Parts) -> Family:
    """Compare what every drafter writes with the text of transformers' own code."""
    reference = Reference.load(target, "cpu", "float32", close_call=parts.target.close_call)
    num_tokens = num_accepted = 0
    for temperature, num_slots in ((0.0, 3), (0.8, 1), (0.8, 3)):
        drafters = [each for each in DRAFTERS if each not in NEED_A_HEAD] if num_slots > 1 else ["model"]
        settings = [Setting(each, "fixed", 3, num_slots, is_shuffled=num_slots > 1) for each in drafters]
        make_rows = partial(_rows, parts.target.vocab_size, temperature)
        alone = make_rows()
        list(reference.write(alone))
        for finding in findings(parts, _OPTIONS, settings, make_rows, alone, reference):
            num_tokens += finding.num_tokens
            num_accepted += finding.num_accepted_tokens
            for each in finding.differences:
                where = f"temperature {temperature:g}, {finding.setting.num_slots} slots, row {each.row}"
                reason = f"drafter {finding.setting.drafter}, {where}: another token at {each.position}"
                return Family(name, class_name, "wrong", reason, num_tokens, num_accepted)
    return Family(name, class_name, "exact", "", num_tokens, num_accepted)


def _rows(vocab_size: int, temperature: float) -> list[Sequence]:
    generator = random.Random(0)
    params = SamplingParams(temperature=temperature, max_tokens=_MAX_TOKENS, ignore_eos=True)
    prompts = [[generator.randrange(1, vocab_size) for _ in range(length)] for length in _PROMPT_LENGTHS]
    return [Sequence.create(prompt, params, row=index) for index, prompt in enumerate(prompts)]


def _in_a_line(error: Exception, model_type: str, folder: str) -> str:
    """Return an error's message without the name of the model, which stands beside it."""
    text = " ".join(str(error).split())
    for name in (f"{folder}/target", f"{folder}/draft", model_type):
        text = text.replace(f"'{name}' ({model_type})", "the model").replace(f"'{name}'", "the model")
    return text.replace(f"{folder}/", "")
