"""Control tokens (<|im_end|>), and how the same characters in a message are kept from being read as one.

A chat template writes control tokens, and a message may hold the same characters. In a message they are text. So before
the template runs, they are replaced by masks: strings of characters that no text has. After it, the control tokens that
are not masked are the template's own. The text is then encoded by a twin of the tokenizer, which knows each control
token only under a mask of its own. So the twin never reads a message's characters as a control token, and always reads
the template's as one.

Messages that spell no control token are encoded by the tokenizer itself. Some tokenizers look for control tokens only
after they have normalized the text (NFKC turns full-width characters into <think>). Then the twin encodes the text as
well, and if the two do not find the same control tokens, the twin is right.

An assistant's messages may hold the tokens that are not special (<think>): the model wrote them.
"""

import json
import re
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from pipeline.errors import RowError

# Characters for private use: no standard gives them a meaning, and a normalizer leaves them or drops them all.
_FIRST_DIGIT, _OPEN, _CLOSE = 0xE100, "\ue0fe", "\ue0ff"
_A_MASK = re.compile(f"{_OPEN}[^{_OPEN}{_CLOSE}]*{_CLOSE}")


def _mask(number: int, nonce: str) -> str:
    """Return a string that is in no text: every process draws its own nonce."""
    return _OPEN + nonce + "".join(chr(_FIRST_DIGIT + int(digit)) for digit in str(number)) + _CLOSE


@dataclass(frozen=True)
class Masked:
    """Messages and template variables with their control characters masked, and what each mask stands for."""

    messages: list[dict[str, Any]]
    variables: dict[str, Any]
    masks: Mapping[str, str]

    def restore(self, text: str) -> str:
        """Return the text with the messages' own characters in place of the masks."""
        return _A_MASK.sub(lambda match: self.masks.get(match.group(), match.group()), text)


class ControlTokens:
    """The control tokens of one tokenizer."""

    def __init__(self, tokenizer: Any) -> None:
        """Read the tokenizer's added tokens; the twin is made when it is first needed."""
        self._tokenizer = tokenizer
        added = tokenizer.added_tokens_decoder  # made anew each time that it is asked for; Gemma 3 has thousands
        special = {*tokenizer.all_special_tokens, *(str(token.content) for token in added.values() if token.special)}
        # In some tokenizers runs of spaces and line breaks are added tokens, too; they control nothing.
        texts = {token_id: str(token.content) for token_id, token in added.items()}
        self._ids = {content: token_id for token_id, content in texts.items() if content.strip()}
        self.texts = frozenset(self._ids)
        self._any = _pattern(self._ids)
        self._special = _pattern([content for content in self._ids if content in special])
        normalizer = getattr(getattr(tokenizer, "backend_tokenizer", None), "normalizer", None)
        self._may_appear = normalizer is not None and any(added[token_id].normalized for token_id in self._ids.values())
        self._nonce = "".join(chr(_FIRST_DIGIT + 16 + secrets.randbelow(16)) for _ in range(16))

    def mask(self, messages: Sequence[Mapping[str, Any]], variables: Mapping[str, Any]) -> Masked:
        """Mask messages and variables; without masks, they are encoded as they are."""
        masks: dict[str, str] = {}  # of each content
        masked = [
            {name: self._masked(value, message.get("role") == "assistant", masks) for name, value in message.items()}
            for message in messages
        ]
        masked_variables = {name: self._masked(value, False, masks) for name, value in variables.items()}
        return Masked(masked, masked_variables, {mask: content for content, mask in masks.items()})

    def _masked(self, value: Any, is_assistants: bool, masks: dict[str, str]) -> Any:
        if isinstance(value, str):
            pattern = self._special if is_assistants else self._any
            return value if pattern is None else pattern.sub(lambda match: self._mask_of(match.group(), masks), value)
        if isinstance(value, dict):
            return {
                self._masked(name, is_assistants, masks): self._masked(inner, is_assistants, masks)
                for name, inner in value.items()
            }
        if isinstance(value, list):
            return [self._masked(inner, is_assistants, masks) for inner in value]
        return value

    def _mask_of(self, content: str, masks: dict[str, str]) -> str:
        return masks.setdefault(content, _mask(len(self._ids) + len(masks), self._nonce))

    def encode(self, rendered: str, masked: Masked) -> list[int]:
        """Return the token ids of the rendered, masked messages. Raises RowError if the twin cannot keep them apart."""
        token_ids, is_sure = self._encoded_apart(rendered, masked)
        if not is_sure:
            raise _cannot_encode(masked)
        return token_ids

    def settled_ids(self, rendered: str, token_ids: list[int]) -> list[int]:
        """Return `token_ids`, the tokenizer's own, or the twin's if the two find different control tokens.

        `rendered` are messages that spell no control token before they are normalized. Raises RowError as `encode`.
        """
        if not self._may_appear:
            return token_ids
        unmasked, controls = Masked([], {}, {}), set(self._ids.values())
        apart, is_sure = self._encoded_apart(rendered, unmasked)
        if [i for i in apart if i in controls] == [i for i in token_ids if i in controls]:
            return token_ids
        if not is_sure:
            raise _cannot_encode(unmasked)
        return apart

    def _encoded_apart(self, rendered: str, masked: Masked) -> tuple[list[int], bool]:
        """Encode by the twin; return the ids, and whether exactly the template's control tokens became such tokens."""
        twin, own_masks, ids = self._twin
        assert self._any is not None
        text, num_own = self._any.subn(lambda match: own_masks[match.group()], rendered)
        # As a batch, which lets other threads run meanwhile.
        token_ids = twin.encode_batch([masked.restore(text)], add_special_tokens=False)[0].ids
        controls = set(self._ids.values())
        is_foreign = any(token_id not in ids and token_id in controls for token_id in token_ids)
        num_found = sum(ids.get(token_id) in controls for token_id in token_ids)
        return [ids.get(token_id, token_id) for token_id in token_ids], num_found == num_own and not is_foreign

    @cached_property
    def _twin(self) -> tuple[Any, dict[str, str], dict[int, int]]:
        """The twin, the mask of each control token, and from the twin's ids of added tokens to the tokenizer's own."""
        from tokenizers import Tokenizer

        backend = getattr(self._tokenizer, "backend_tokenizer", None)
        if not isinstance(backend, Tokenizer):
            raise RowError(
                "encode",
                "a message holds a control token of this tokenizer, which has no fast version to encode it as text",
            )
        description, names = json.loads(backend.to_str()), dict[str, int]()
        own_masks = {content: _mask(number, self._nonce) for number, content in enumerate(self._ids)}
        keeps_masks = backend.normalizer is None or all(
            mask in backend.normalizer.normalize_str(mask) for mask in own_masks.values()
        )
        for token in description["added_tokens"]:
            if token["content"] in own_masks:
                token |= {"content": own_masks[token["content"]], "single_word": False}
                token["normalized"] = token["normalized"] and keeps_masks  # else looked for before it is normalized
            names[token["content"]] = token["id"]
        description["post_processor"] = None  # names special tokens, and adds them to plain prompts only
        description["truncation"] = description["padding"] = None
        twin = Tokenizer.from_str(json.dumps(description))
        ids: dict[int, int] = {}
        for name, token_id in names.items():
            twin_id = twin.token_to_id(name)
            assert twin_id is not None, "the twin was made with these tokens"
            ids[twin_id] = token_id
        return twin, own_masks, ids


def _cannot_encode(masked: Masked) -> RowError:
    spelled = sorted(set(masked.masks.values()))
    which = f"{spelled[0]!r}, a control token" if spelled else "what this tokenizer takes for a control token"
    return RowError("encode", f"a message holds {which}, and this tokenizer cannot write it as text")


def _pattern(contents: Any) -> re.Pattern[str] | None:
    """Return a pattern for any of these strings; of several that begin at one position it matches the longest."""
    longest_first = sorted(contents, key=len, reverse=True)
    return re.compile("|".join(map(re.escape, longest_first))) if longest_first else None
