"""openvino-genai as a peer. The pipeline would ignore max_num_seqs where dynamic_split_fuse is on, so it is off."""

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import openvino
import openvino_genai
from openvino_tokenizers import convert_tokenizer
from optimum.intel import OVModelForCausalLM
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast
from worker import answer_all, generate_all


def load(task: dict) -> openvino_genai.ContinuousBatchingPipeline:
    """Return the pipeline, with a draft model where the mode asks for one."""
    scheduler = openvino_genai.SchedulerConfig()
    scheduler.max_num_seqs = task["max_batch"]
    scheduler.max_num_batched_tokens = 8192
    scheduler.dynamic_split_fuse = False
    scheduler.enable_prefix_caching = False  # a repeat must not find what the one before left
    scheduler.cache_size = 2  # GB
    precision = {"float32": "f32", "bfloat16": "bf16"}[task["dtype"]]
    properties = {
        "INFERENCE_PRECISION_HINT": precision,
        "KV_CACHE_PRECISION": precision,
        "INFERENCE_NUM_THREADS": task["threads"],
    }
    if task["mode"] == "draft":
        draft = converted(task, "draft")
        properties["draft_model"] = openvino_genai.draft_model(draft, "CPU", **properties)
    return openvino_genai.ContinuousBatchingPipeline(converted(task, "target"), scheduler, "CPU", properties)


def converted(task: dict, name: str) -> str:
    """Return the folder of a model in openvino's format, which is made once."""
    folder = Path(task["cache"]) / task["dtype"] / name
    if not (folder / "openvino_model.xml").exists():
        model = OVModelForCausalLM.from_pretrained(task[name], export=True, compile=False, load_in_8bit=False)
        add_tokenizer(folder, model.config.vocab_size)
        model.save_pretrained(folder)
    return str(folder)


def add_tokenizer(folder: Path, vocab_size: int) -> None:
    """Write a tokenizer. Prompts are token ids, but a pipeline with a draft model compares the tokenizers."""
    letters = pre_tokenizers.ByteLevel.alphabet()
    fillers = [f"{i:08}" for i in range(vocab_size - len(letters) - 1)]
    vocab = {token: i for i, token in enumerate([*letters, "ab", *fillers])}
    core = Tokenizer(models.BPE(vocab=vocab, merges=[("a", "b")]))  # the converter cannot do without a merge
    core.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    core.decoder = decoders.ByteLevel()
    names = ("openvino_tokenizer.xml", "openvino_detokenizer.xml")
    fast = PreTrainedTokenizerFast(tokenizer_object=core, eos_token=fillers[-1])
    for name, converted_tokenizer in zip(names, convert_tokenizer(fast, with_detokenizer=True), strict=True):
        openvino.save_model(converted_tokenizer, folder / name)


def generate(pipeline: openvino_genai.ContinuousBatchingPipeline, task: dict, question: dict) -> dict:
    """Return the token ids of each prompt, in order, and the seconds it took."""
    config = openvino_genai.GenerationConfig()
    config.max_new_tokens = question["new_tokens"]
    config.ignore_eos = True
    config.do_sample = False
    if task["mode"] == "draft":
        config.num_assistant_tokens = task["num_draft_tokens"]
    running: dict[int, openvino_genai.GenerationHandle] = {}

    def add(number: int, prompt: openvino.Tensor) -> None:
        running[number] = pipeline.add_request(number, prompt, config)

    def step() -> Iterator[tuple[int, list[int]]]:
        pipeline.step()
        for number, handle in list(running.items()):
            if handle.get_status() == openvino_genai.GenerationStatus.FINISHED:
                yield number, list(handle.read_all()[0].generated_ids)
                del running[number]

    prompts = [openvino.Tensor(np.array([prompt], dtype=np.int64)) for prompt in question["prompts"]]
    return generate_all(prompts, question["batch"], add, step)


if __name__ == "__main__":
    answer_all(load, generate, "openvino", "openvino-genai")
