"""llama.cpp as a peer, on the GGUF file itself: weights of 4 or 8 bits, and activations that it rounds to 8."""

import json
from collections.abc import Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from urllib.request import Request, urlopen

import xllamacpp
from worker import answer_all, generate_all


def load(task: dict) -> xllamacpp.Server:
    """Return a server over the file, with a slot for each row of the largest batch."""
    params = xllamacpp.CommonParams()
    params.model.path = task["file"]
    params.n_parallel = task["max_batch"]
    params.n_ctx = task["max_batch"] * task["max_model_len"]
    params.cpuparams.n_threads = params.cpuparams_batch.n_threads = task["threads"]
    params.n_threads_http = task["max_batch"] + 1
    params.verbosity = -1
    return xllamacpp.Server(params)


def generate(server: xllamacpp.Server, task: dict, question: dict) -> dict:
    """Return the token ids of each prompt, in order, and the seconds it took."""

    def ask(prompt: list[int]) -> list[int]:
        asked = {
            "prompt": prompt,
            "n_predict": question["new_tokens"],
            "temperature": 0.0,
            "ignore_eos": True,
            "cache_prompt": False,  # a repeat must not find what the one before left
            "return_tokens": True,
        }
        headers = {"Content-Type": "application/json"}
        with urlopen(Request(f"{server.listening_address}/completion", json.dumps(asked).encode(), headers)) as answer:
            return json.load(answer)["tokens"]

    running: dict[Future[list[int]], int] = {}
    threads = ThreadPoolExecutor(question["batch"])

    def add(number: int, prompt: list[int]) -> None:
        running[threads.submit(ask, prompt)] = number

    def step() -> Iterator[tuple[int, list[int]]]:
        for done in wait(running, return_when=FIRST_COMPLETED).done:
            yield running.pop(done), done.result()

    with threads:
        return generate_all(question["prompts"], question["batch"], add, step)


if __name__ == "__main__":
    answer_all(load, generate, "xllamacpp")
