"""Reference: what a model writes alone, by transformers' own code: its attention, its cache, one row, one token a step.

Nothing of what makes the engine fast is used: no slots, no batch, no draft, none of our layers, and no state of a row
but its tokens: each row's grammar is compiled for it alone, and read forward (`ForwardMatcher`). Only the rule that
turns logits into a token is shared, with its noise and its margin: where rounding could decide between two tokens, one
forward without a cache does, here as in the engine. `dray prove` compares the engine's texts with these.
"""

import inspect
from collections.abc import Iterator
from collections.abc import Sequence as Seq

import torch
from transformers import Cache, PreTrainedModel

from decoding.checkpoint.loading import DType, load_network
from decoding.checkpoint.supported import cache_argument
from decoding.device import Device, to_device
from decoding.grammar.grammars import Grammars
from decoding.noise import GumbelNoise, Stream
from decoding.sampling.distribution import shape_logits
from decoding.sampling.judging import verify_rows
from decoding.sampling.picks import pick_plain
from decoding.sampling.rows import Rows, sampling_batch
from decoding.sampling.rules import COUPLED
from decoding.sampling.token_history import why_nothing_follows
from decoding.sampling.verdicts import Draft, Verdicts
from decoding.sequence import Sequence, TokenLogprobs


class Reference:
    """A model in transformers' hands."""

    def __init__(
        self,
        network: PreTrainedModel,
        eos_token_ids: frozenset[int],
        close_call: float,
        grammars: Grammars | None = None,
    ) -> None:
        """Take over `network`, which has its own attention, and the margin that the engine's target has.

        Without `grammars` no sequence may have one.
        """
        self._close_call, self._grammars = close_call, grammars
        self._network, self._eos_token_ids = network.eval().requires_grad_(False), eos_token_ids

    @classmethod
    def load(
        cls, path: str, device: Device, dtype: DType, *, close_call: float, grammars: Grammars | None = None
    ) -> "Reference":
        """Load the model at `path`; raise a ValueError saying why it cannot be run."""
        return cls(*load_network(path, device, dtype), close_call, grammars)

    def write(self, sequences: Seq[Sequence]) -> Iterator[Sequence]:
        """Yield each of these sequences when it is finished, one after the other."""
        for sequence in sequences:
            self._finish(sequence)
            yield sequence

    @torch.inference_mode()
    def margin(self, sequence: Sequence, token_id: int | None = None) -> float:
        """Return how much better than the second best the best next token of a sequence is, in logits, with noise.

        With a token: how much better than this one, 0.0 if it is the best itself.
        """
        rows, logits_11V = self._rows(sequence), self._logits(sequence.token_ids)[None, None]
        nothing_10 = rows.sampling.keys_B.new_zeros(1, 0)
        logits_11V = rows.masked(logits_11V, nothing_10, 0)
        shaped_11V = shape_logits(logits_11V, rows.sampling, rows.history(nothing_10, 0, 1))
        noise = GumbelNoise.draw(rows.sampling.keys_B, rows.positions(0, 1), logits_11V.shape[-1], Stream.SHARED)
        picks = pick_plain(shaped_11V, rows.sampling, noise)
        other_BJ = picks.second_BJ
        if token_id is not None:
            alone_11V = torch.full_like(shaped_11V, -torch.inf)
            alone_11V[..., token_id] = shaped_11V[..., token_id]
            other_BJ = pick_plain(alone_11V, rows.sampling, noise).best_BJ
        return float((picks.best_BJ - other_BJ) * rows.sampling.temperature_B)

    @torch.inference_mode()
    def _finish(self, sequence: Sequence) -> None:
        cache: Cache | None = None  # the model makes its own
        cache_name, num_fed = cache_argument(self._network), 0
        fed = sequence.token_ids
        while not sequence.is_finished:
            arguments = {"use_cache": True, cache_name: cache, **self._positions(num_fed, len(fed))}
            output = self._network(input_ids=self._tokens(fed), **arguments)
            cache, num_fed = output[cache_name], num_fed + len(fed)
            logits_V = output.logits[0, -1]
            verdict = self._verdict(sequence, logits_V)
            if verdict.first_close_call_B.item() == 0:
                logits_V = self._logits(sequence.token_ids)
                verdict = self._verdict(sequence, logits_V)
            if not verdict.is_finite_B.item():
                stop_ids = sequence.stop_ids(self._eos_token_ids)
                return sequence.fail(why_nothing_follows(sequence, (), len(logits_V), stop_ids))
            fed = [int(verdict.next_token_B.item())]
            logprobs = _logprobs(logits_V, fed[0], sequence.params.logprobs)
            sequence.commit(fed, num_draft_tokens=0, eos_token_ids=self._eos_token_ids, logprobs=logprobs)
        return None

    def _logits(self, token_ids: Seq[int]) -> torch.Tensor:
        """Return logits [V] after these tokens, by a forward without a cache."""
        logits_V: torch.Tensor = self._network(input_ids=self._tokens(token_ids), use_cache=False).logits[0, -1]
        return logits_V

    def _positions(self, start: int, num_tokens: int) -> dict[str, torch.Tensor]:
        """Return the positions of tokens, which `generate` states: without them some models count from 0 again."""
        if "position_ids" not in inspect.signature(self._network.forward).parameters:
            return {}
        return {"position_ids": self._tokens(range(start, start + num_tokens))}

    def _tokens(self, token_ids: Seq[int]) -> torch.Tensor:
        return to_device([list(token_ids)], self._network.device)

    def _rows(self, sequence: Sequence) -> Rows:
        if sequence.params.structured is not None and sequence.matcher is None and self._grammars is not None:
            sequence.matcher = self._grammars.forward_matcher(sequence.params.structured)
        sampling = sampling_batch((sequence,), self._eos_token_ids, self._network.device)
        return Rows((sequence,), sampling, (0,), COUPLED)

    def _verdict(self, sequence: Sequence, logits_V: torch.Tensor) -> Verdicts:
        rows = self._rows(sequence)
        nothing_10 = rows.sampling.keys_B.new_zeros(1, 0)
        draft = Draft(nothing_10, torch.zeros_like(rows.sampling.keys_B))
        return verify_rows(rows, draft, logits_V[None, None], self._close_call)


def _logprobs(logits_V: torch.Tensor, token_id: int, num_top: int | None) -> list[TokenLogprobs]:
    """Return the log-probabilities of a token and of the likeliest ones; none if the row asks for none."""
    if num_top is None:
        return []
    logprobs_V = logits_V.float().log_softmax(-1)
    top = logprobs_V.topk(min(num_top, len(logprobs_V)))
    likely = tuple(zip(top.indices.tolist(), top.values.tolist(), strict=True))
    return [TokenLogprobs(float(logprobs_V[token_id]), likely)]
