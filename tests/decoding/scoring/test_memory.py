"""The memory of scoring is bounded at any vocabulary: it does not grow with tokens x vocabulary."""

import weakref

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from decoding import Engine, ScoredText
from decoding.network.language_model import LanguageModel
from decoding.sampling.logprobs import LOGITS_AT_ONCE
from tests.decoding.tiny import build, engine_over, llama_config, random_prompts

VOCAB_SIZE = 151_936
TOKENS = 300  # x 151,936 in float32 are 182 MB


class Peak(TorchDispatchMode):
    """Count the bytes of the storages that operations make while they are alive, and keep the most."""

    def __init__(self) -> None:
        super().__init__()
        self.num_bytes = self.most = 0
        self._users: dict[int, int] = {}

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        given = {arg.untyped_storage().data_ptr() for arg in args if isinstance(arg, torch.Tensor)}
        for each in out if isinstance(out, tuple | list) else (out,):
            if isinstance(each, torch.Tensor) and each.numel():
                self._hold(each, given)
        return out

    def _hold(self, tensor: torch.Tensor, given: set[int]) -> None:
        storage = tensor.untyped_storage()
        place, num_bytes = storage.data_ptr(), storage.nbytes()
        if place in given and place not in self._users:
            return  # a view of what was there before
        if not self._users.get(place):
            self.num_bytes += num_bytes
            self.most = max(self.most, self.num_bytes)
        self._users[place] = self._users.get(place, 0) + 1
        weakref.finalize(tensor, self._drop, place, num_bytes)

    def _drop(self, place: int, num_bytes: int) -> None:
        self._users[place] -= 1
        if not self._users[place]:
            del self._users[place]
            self.num_bytes -= num_bytes


def peak(engine: Engine, num_texts: int) -> int:
    texts = [ScoredText.whole(prompt, 2) for prompt in random_prompts([TOKENS] * num_texts, VOCAB_SIZE)]
    with Peak() as mode:
        engine.score(texts)
    assert all(len(text.scores[0]) == TOKENS - 1 for text in texts)
    return mode.most


def test_memory_does_not_grow_with_tokens_and_vocabulary() -> None:
    config = llama_config(VOCAB_SIZE, hidden_size=64, max_position_embeddings=512)
    model = LanguageModel(build(config, seed=1), frozenset())
    for is_fused in (False, True):
        if is_fused:
            model.speed_up()
            assert model.fused is not None
        engine = engine_over(model, max_model_len=512, max_prefill_tokens=512)
        one, many = peak(engine, 1), peak(engine, 4)
        assert LOGITS_AT_ONCE * 4 < many < 3 * LOGITS_AT_ONCE * 4 < 4 * TOKENS * VOCAB_SIZE * 4, f"fused: {is_fused}"
        assert many < one + (8 << 20), f"fused: {is_fused}"
