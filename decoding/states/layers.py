"""StateLayers: the modules of a network that keep a state of each row, run as if each row were alone.

transformers has two formulas for such a module: one for many tokens, and one for a single token of a row that has a
state, which is what `generate` computes for every token that it writes. They add in different orders. A module whose
functions are known takes all tokens of a forward at once, by the formula for one (`packed_steps.py`).

In any other module, tokens that are verified go through one by one, all rows at once, and each leaves a state to which
a row can be rolled back. A prompt goes through at once, each row by itself; rows of equal lengths share a call. The
large products of such a module are of single tokens. Those over its input are computed for all tokens before, and the
last one for all tokens behind, so that a weight is read once in a forward.

Shapes: B rows, T tokens of each in a call, N tokens in all, H hidden size.
"""

import inspect
from collections import defaultdict
from collections.abc import Iterator
from collections.abc import Sequence as Seq
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any

import torch

from decoding.device import to_device
from decoding.states import packed_steps
from decoding.states.calls import StateCalls
from decoding.states.model_file import RECURRENT_CALLS, keeps_states, source_of
from decoding.states.rows import RowSpan, RowStates

CACHE_ARGUMENTS = {"cache_params", "past_key_values"}  # by which a module is given the cache


def install(network: torch.nn.Module) -> bool:
    """Let the modules of `network` that keep states find those of each row in a cache; tell whether it has any."""
    found = state_modules(network)
    for module in found:
        StateLayer(module)
    return bool(found)


def state_modules(network: torch.nn.Module) -> list[torch.nn.Module]:
    """Return the modules of a network that keep states, without those that are parts of another one."""
    found = {name: module for name, module in network.named_modules() if keeps_states(type(module))}
    return [module for name, module in found.items() if not any(name.startswith(f"{other}.") for other in found)]


def _goes_on_at_once(source: str) -> bool:
    """Tell whether a module takes many tokens of a row that has a state; Mamba 1 begins anew with them."""
    keeps_only_windows = not any(call in source for call in RECURRENT_CALLS)
    return keeps_only_windows or "initial_state" in source


class StateLayer:
    """One module that keeps states."""

    def __init__(self, module: torch.nn.Module) -> None:
        """Take the place of the module's own forward."""
        self._module, self._plain = module, module.forward
        self._signature = inspect.signature(module.forward)
        self._is_packed = packed_steps.install(module)
        self._goes_on_at_once = _goes_on_at_once(source_of(type(module)))
        self._hidden = next(iter(self._signature.parameters))
        # Names of the linear layers over the module's input, and of the one whose output it returns; None: not known.
        self._over_input: tuple[str, ...] | None = None
        self._last: str | None = None
        module.forward = self._forward

    def _forward(self, *args: Any, **kwargs: Any) -> Any:
        cache = next((each for each in (*args, *kwargs.values()) if isinstance(each, StateCalls)), None)
        if cache is None:
            return self._plain(*args, **kwargs)
        assert cache.states is not None, "a network with states has a cache for them"
        bound = self._signature.bind(*args, **kwargs)
        hidden_BTH = bound.arguments[self._hidden]
        if self._is_packed:
            with cache.states.handles():
                every_N1 = torch.arange(cache.states.num_fed, device=hidden_BTH.device)[:, None]
                out = self._call(bound, hidden_BTH.flatten(0, 1)[:, None], hidden_BTH.shape[:2], every_N1)
            return out.view(*hidden_BTH.shape[:2], -1)
        if self._over_input is None:
            self._find_products(bound, hidden_BTH)
        return self._run(cache.states, bound, hidden_BTH)

    def _run(self, states: RowStates, bound: inspect.BoundArguments, hidden_BTH: torch.Tensor) -> Any:
        """Run all rows of the planned forward; return what the module would return."""
        hidden_NH = hidden_BTH.flatten(0, 1)
        calls = list(_calls(states, goes_on_at_once=self._goes_on_at_once))
        if len(calls) == 1 and calls[0].places == list(range(len(hidden_NH))):
            with states.batch(calls[0].reads, calls[0].written):
                places_BT = torch.arange(len(hidden_NH), device=hidden_NH.device).view(len(calls[0].reads), -1)
                part_BTH = hidden_NH.view(*places_BT.shape, -1)
                outputs = [self._call(bound, part_BTH, hidden_BTH.shape[:2], places_BT)]
            return _of_shape(_joined(outputs, places_BT.flatten(), len(hidden_NH)), hidden_BTH.shape[:2])
        before = {name: self._module.get_submodule(name)(hidden_NH) for name in self._over_input or ()}
        outputs = []
        for call in calls:
            places_BT = to_device(call.places, hidden_NH.device).view(len(call.reads), -1)
            part_BTH = hidden_NH[places_BT]
            with states.batch(call.reads, call.written), self._products(part_BTH, before, places_BT):
                outputs.append(self._call(bound, part_BTH, hidden_BTH.shape[:2], places_BT))
        placed_N = to_device([place for call in calls for place in call.places], hidden_NH.device)
        out = _joined(outputs, placed_N, len(hidden_NH))
        if self._last is not None:
            out = self._module.get_submodule(self._last)(out)
        return _of_shape(out, hidden_BTH.shape[:2])

    def _call(
        self, bound: inspect.BoundArguments, part_BTH: torch.Tensor, shape: torch.Size, places_BT: torch.Tensor
    ) -> Any:
        """Run the module over some of the tokens; what else it is given for all tokens is given for these."""
        arguments = dict(bound.arguments)
        for name, value in arguments.items():
            if isinstance(value, torch.Tensor) and value.shape[:2] == shape:
                arguments[name] = value.flatten(0, 1)[places_BT]
        arguments[self._hidden] = part_BTH
        given = inspect.BoundArguments(self._signature, arguments)
        return self._plain(*given.args, **given.kwargs)

    @contextmanager
    def _products(
        self, part_BTH: torch.Tensor, before: dict[str, torch.Tensor], places_BT: torch.Tensor
    ) -> Iterator[None]:
        """Let the products over the input be those computed before, and the last one wait."""
        with ExitStack() as replaced:
            for name, out_NO in before.items():
                linear = self._module.get_submodule(name)
                replaced.enter_context(_replaced(linear, partial(_known, linear.forward, part_BTH, out_NO, places_BT)))
            if self._last is not None:
                replaced.enter_context(_replaced(self._module.get_submodule(self._last), _as_it_is))
            yield

    def _find_products(self, bound: inspect.BoundArguments, hidden_BTH: torch.Tensor) -> None:
        """Find the linear layers over the module's input, and the one whose output it returns, without states."""
        inputs: dict[str, Any] = {}
        outputs: dict[str, Any] = {}
        part_BTH = hidden_BTH[:1, :1]

        def keep(name: str, linear: torch.nn.Module, args: tuple[Any, ...], out: Any) -> None:
            inputs[name], outputs[name] = args[0], out

        with ExitStack() as hooks:
            for name, linear in self._module.named_modules():
                if isinstance(linear, torch.nn.Linear):
                    hooks.callback(linear.register_forward_hook(partial(keep, name)).remove)
            given = self._signature.bind(*bound.args, **bound.kwargs)
            for name, value in given.arguments.items():
                given.arguments[name] = None if isinstance(value, StateCalls) else value
            first_11 = torch.zeros(1, 1, dtype=torch.int64, device=hidden_BTH.device)
            returned = self._call(given, part_BTH, hidden_BTH.shape[:2], first_11)
        self._over_input = tuple(name for name, given in inputs.items() if given is part_BTH)
        self._last = next((name for name, out in outputs.items() if out is returned), None)


class _Call:
    """Rows that go through a module at once: as many tokens of each, all with states before or all without."""

    def __init__(self) -> None:
        self.places: list[int] = []  # [B * T], of the tokens among all that are fed
        self.reads: list[int | None] = []
        self.written: list[int | None] = []


def _calls(states: RowStates, *, goes_on_at_once: bool) -> Iterator[_Call]:
    """Yield the calls of a module in a planned forward: whole rows, or one token of each where each state is kept.

    Unless it `goes_on_at_once`, a row that has a state goes on token by token, too.
    """
    stepping: list[tuple[RowSpan, int | None, list[int | None]]] = []
    whole: dict[tuple[int, bool], _Call] = defaultdict(_Call)
    for span, read, written in zip(states.spans, states.reads, states.written, strict=True):
        is_stepping = written[0] is not None or (read is not None and not goes_on_at_once)
        if span.num_tokens > 1 and is_stepping:  # what is not kept is in the last entry until the next step
            stepping.append((span, read, [written[-1] if entry is None else entry for entry in written]))
            continue
        call = whole[span.num_tokens, read is None]
        call.places += range(span.first, span.first + span.num_tokens)
        call.reads.append(read)
        call.written.append(written[-1])
    yield from whole.values()
    for step in range(max((span.num_tokens for span, *_ in stepping), default=0)):
        steps: dict[bool, _Call] = defaultdict(_Call)
        for span, read, entries in stepping:
            if span.num_tokens > step:
                before = entries[step - 1] if step else read
                call = steps[before is None]
                call.places.append(span.first + step)
                call.reads.append(before)
                call.written.append(entries[step])
        yield from steps.values()


def _known(
    compute: Any, part_BTH: torch.Tensor, out_NO: torch.Tensor, places_BT: torch.Tensor, given: torch.Tensor
) -> torch.Tensor:
    """Return the lines of a product that was computed for all tokens; of any other input, the product."""
    out: torch.Tensor = out_NO[places_BT] if given is part_BTH else compute(given)
    return out


def _as_it_is(given: torch.Tensor) -> torch.Tensor:
    return given


@contextmanager
def _replaced(module: torch.nn.Module, forward: Any) -> Iterator[None]:
    before = module.__dict__.get("forward")
    module.__dict__["forward"] = forward
    try:
        yield
    finally:
        if before is None:
            del module.__dict__["forward"]
        else:
            module.__dict__["forward"] = before


def _joined(outputs: Seq[Any], placed_N: torch.Tensor, num_tokens: int) -> Any:
    """Put the outputs of all calls [B, T, ...] in the order of the tokens that are fed; padding has zeros.

    Of what is no output of tokens, such as a state, nothing is returned: no layer reads it.
    """
    if isinstance(outputs[0], tuple):
        return tuple(_joined(parts, placed_N, num_tokens) for parts in zip(*outputs, strict=True))
    if outputs[0] is None or sum(each.shape[0] * each.shape[1] for each in outputs) != len(placed_N):
        return None
    joined = torch.cat([each.flatten(0, 1) for each in outputs])
    if len(outputs) == 1 and len(joined) == num_tokens:  # in order
        return joined
    placed = joined.new_zeros(num_tokens, *joined.shape[1:])
    placed[placed_N] = joined
    return placed


def _of_shape(out: Any, shape: torch.Size) -> Any:
    """Return outputs of N tokens as [B, T, ...]."""
    if isinstance(out, tuple):
        return tuple(_of_shape(each, shape) for each in out)
    return None if out is None else out.view(*shape, *out.shape[1:])
