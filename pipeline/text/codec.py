"""The translation between text and tokens: the only module that knows the tokenizer and the chat template."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence, Set
from dataclasses import dataclass, field, replace
from datetime import datetime
from functools import cache, cached_property, lru_cache, partial
from inspect import signature
from pathlib import Path
from typing import Any

from pipeline.errors import RowError, TemplateError
from pipeline.inputs.rows import InputRow
from pipeline.logs import Event
from pipeline.requests.strict_json import check_json
from pipeline.text.chat import Chat, ChatPrompt
from pipeline.text.control_tokens import ControlTokens
from pipeline.text.templates.chat_template import ChatTemplate, ChatTemplates, Sources, sources_of
from pipeline.text.templates.messages import check_messages, content_text, messages_as_read
from pipeline.text.text_behind import TextBehind
from pipeline.text.tokenizer import DecoderRules, TextLength, bad_words_ids, load_tokenizer, special_tokens
from pipeline.text.tools.grammar import GrammarWriter

# Names of the chat in templates; the parameters of apply_chat_template are reserved, too.
_CHAT_NAMES = {"messages", "conversation", "conversations"}
_log = logging.getLogger(__name__)
_MOST_LISTS = 64  # of bad words, of which the longest has some thousand tokens
_MOST_KEPT = 1 << 16  # texts of a few tokens; they take some 15 MB
_MOST_CONTEXT = 64  # characters of a prompt whose tokens are a context for decoding
# Parameters that are variables of the template: allowed where each row has its own.
_ROW_VARIABLES = {"tools", "documents"}


@dataclass(frozen=True)
class TextCodec:
    """A tokenizer, and how rows become prompts.

    `template_kwargs` are variables of the chat template with one value for the run; `template_columns` maps
    variables to the columns that hold them. `system_prompt` goes before messages that do not begin with one
    of their own. `tool_calls` and `reasoning` name the formats of answers (`ChatTemplate`).
    """

    tokenizer: Any  # a transformers.PreTrainedTokenizerBase
    chat_template: Sources = None
    system_prompt: str | None = None
    template_kwargs: Mapping[str, Any] = field(default_factory=dict)
    template_columns: Mapping[str, str] = field(default_factory=dict)
    tool_calls: str = "auto"
    reasoning: str = "auto"
    moment: datetime | None = None  # that a template's clock shows; that of each chat unless given
    shown_ids: frozenset[int] = frozenset()  # of special tokens that texts show; they leave out the others

    @classmethod
    def load(
        cls, tokenizer_path: str, chat_template: str | None = None, template_name: str | None = None, **options: Any
    ) -> TextCodec:
        """Load the codec of a tokenizer folder; `chat_template` (Jinja text) replaces the tokenizer's own.

        `template_name` names one of the tokenizer's own; `options` are other fields of the codec. Raises ValueError if
        the folder has no tokenizer that loads without running code of its own, if a chat template cannot be used, if a
        template variable has a name that is taken, or if no format has the name in `tool_calls` or `reasoning`.
        """
        tokenizer = load_tokenizer(tokenizer_path)
        own = sources_of(tokenizer, Path(tokenizer_path), chat_template, template_name)
        codec = cls(tokenizer, own, **options)
        _refuse_taken_names("template_kwargs", codec.template_kwargs, _taken(tokenizer))
        try:
            check_json("chat.template_kwargs", codec.template_kwargs)
        except RowError as error:  # YAML has dates
            raise ValueError(error.message) from error
        _refuse_taken_names("template_columns", codec.template_columns, _taken(tokenizer) - _ROW_VARIABLES)
        ChatTemplate(chat_template, codec.tool_calls, codec.reasoning, {}).check()
        return codec

    def prompt(self, row: InputRow) -> tuple[str, list[int]]:
        """Return the text and the token ids that `row_prompt` returns."""
        found = self.row_prompt(row)
        return found.text, found.token_ids

    def row_prompt(self, row: InputRow) -> ChatPrompt:
        """Return the row's prompt as it is, or its messages as `chat` does. Raises RowError."""
        if row.messages is None:
            assert row.prompt is not None
            if isinstance(row.prompt, list):
                return ChatPrompt(self.decode(row.prompt), row.prompt)
            return ChatPrompt(row.prompt, self.encode(_whole_characters(row.prompt), is_chat=False))
        return self.chat(Chat.of(row.messages, row.asked, self._column_variables(row)))

    def chat(self, chat: Chat, max_tokens: int | None = None) -> ChatPrompt:
        """Return a chat as the chat template renders it, and the form of its answer.

        If the last message is the assistant's, it is continued; otherwise a new one begins. The content of a message is
        text, even if it spells a control token. Raises RowError, with `max_tokens` as `encode`. Messages that are four
        times too long are not even rendered. Shorter ones are, since a template may drop some.
        """
        check_messages(chat.messages)
        for name, value in {**chat.variables, "chat_template_kwargs": chat.options}.items():
            check_json(name, value)
        messages, ending = list(chat.messages), chat.ending(chat.messages)
        if self.system_prompt is not None and messages[0]["role"] not in ("system", "developer"):
            messages.insert(0, {"role": "system", "content": self.system_prompt})
        template = self.templates.pick(chat.asked is not None or chat.variables.get("tools") is not None)
        variables = {**chat.variables, **template.variables_of(chat, _taken(self.tokenizer))}
        if max_tokens is not None:
            num_characters = sum(map(len, map(content_text, messages))) + chat.num_characters_of_tools
            self._length.check_roughly(num_characters, max_tokens)
        render = partial(template.render, ending=ending, now=self.moment or datetime.now())
        messages = messages_as_read(
            messages, len(chat.messages), partial(render, variables=variables), reads_strings=template.reads_strings
        )
        masked = self._control_tokens.mask(messages, variables)
        try:
            rendered = render(masked.messages, masked.variables)
        except Exception as error:  # a template is a program: every error of it is its row's failure
            template.refuse_calls(chat.messages)
            raise TemplateError(error, template.own_reason(error)) from error
        text = _whole_characters(masked.restore(rendered))
        if masked.masks:
            self._check_length(text, max_tokens)
            token_ids = self._control_tokens.encode(rendered, masked)
        else:
            token_ids = self._control_tokens.settled_ids(text, self.encode(text, is_chat=True, max_tokens=max_tokens))
        form = template.answer_form(chat.asked, text, content_text(messages[-1]) if ending[0] else "")
        return ChatPrompt(text, token_ids, form, chat.asked)

    def encode(self, text: str, is_chat: bool, max_tokens: int | None = None) -> list[int]:
        """Return the token ids of a rendered prompt. Raises RowError (stage "encode") if there are none.

        A chat template has written its special tokens itself; to a plain prompt the tokenizer adds its own. A text that
        cannot be written in `max_tokens` tokens is not tokenized and raises LongTextError.
        """
        if not text:
            raise RowError("encode", "the prompt is empty; give it at least one character")
        self._check_length(text, max_tokens)
        token_ids = self._tokenized(text, not is_chat)
        if not token_ids:
            raise RowError("encode", "the prompt has no tokens: the tokenizer drops all of its characters")
        if len(token_ids) > 1 and token_ids[0] == token_ids[1] == getattr(self.tokenizer, "bos_token_id", None):
            _warn_of_second_begin(str(self.tokenizer.bos_token), is_chat)
        return token_ids

    def continuation(self, prompt: str, prompt_token_ids: Sequence[int], text: str, is_chat: bool) -> list[int]:
        """Return the token ids of a text behind a rendered prompt with these tokens.

        Both are tokenized together. Where the tokenizer would join their letters to other tokens at the border, the
        text is tokenized by itself. Raises RowError (stage "encode") if it has no tokens.
        """
        text, number = _whole_characters(text), len(prompt_token_ids)
        together = self._tokenized(prompt + text, not is_chat)
        if together[:number] == list(prompt_token_ids) and len(together) > number:
            return together[number:]
        token_ids = self._tokenized(text, False)
        if not token_ids:
            raise RowError("encode", f"the text {text[:80]!r} has no tokens: the tokenizer drops all of its characters")
        return token_ids

    def decode(self, token_ids: Sequence[int]) -> str:
        """Return the text of token ids, without special tokens, except those of `shown_ids`."""
        shown, skips = list(token_ids), not self.shown_ids
        if self.shown_ids:
            shown = [token_id for token_id in shown if token_id in self.shown_ids or token_id not in self.special_ids]
        return str(self.tokenizer.decode(shown, skip_special_tokens=skips, clean_up_tokenization_spaces=False))

    @cached_property
    def decode_few(self) -> Callable[[tuple[int, ...]], str]:
        """`decode`, which keeps what it returned: the same few tokens are decoded again and again."""
        return lru_cache(_MOST_KEPT)(self.decode)

    @cached_property
    def token_text(self) -> Callable[[int], str]:
        """What returns the text of one token, which may be a special one; U+FFFD for a part of a character.

        It is the text that the token has behind a letter, since some tokenizers drop the first space of a text.
        """
        behind = TextBehind(self.of_all_tokens, self.a_letter)
        return cache(lambda token_id: behind.decode([token_id]))

    def end_of(self, prompt: str) -> list[int]:
        """Return tokens of the last characters of a rendered prompt, behind which an output can be decoded."""
        return self._tokenized(prompt[-_MOST_CONTEXT:], False)

    def _check_length(self, text: str, max_tokens: int | None) -> None:
        if max_tokens is not None:
            self._length.check(text, max_tokens)

    def _tokenized(self, text: str, adds_special: bool) -> list[int]:
        return list(self.tokenizer(text, add_special_tokens=adds_special, verbose=False)["input_ids"])

    def token_bytes(self, token_id: int) -> bytes | None:
        """Return the bytes of one token by itself; None if the tokenizer does not tell them."""
        text = self.token_text(token_id)
        if "\ufffd" not in text:
            return text.encode()
        spelled = str(self.tokenizer.convert_ids_to_tokens(token_id))
        if spelled.startswith("<0x") and spelled.endswith(">"):
            return bytes([int(spelled[3:-1], 16)])
        table = _byte_of_character()
        if all(character in table for character in spelled):
            return bytes(table[character] for character in spelled)
        return None

    @cached_property
    def a_letter(self) -> list[int]:
        """Tokens of a text that is one letter."""
        return self.end_of("a")

    @cached_property
    def templates(self) -> ChatTemplates:
        """The chat templates, and the formats of their answers."""
        fixed = {**getattr(self.tokenizer, "special_tokens_map", {}), **self.template_kwargs}
        return ChatTemplates(self.chat_template, self.tool_calls, self.reasoning, fixed)

    @cached_property
    def template_marks(self) -> tuple[str, ...] | None:
        """The marks by which a prompt is known to be a rendered chat (`ChatTemplates.marks_of_turns`)."""
        return self.templates.marks_of_turns(self._control_tokens.texts)

    @cached_property
    def special_ids(self) -> Mapping[int, str]:
        """The special tokens, which texts leave out."""
        return special_tokens(self.tokenizer)

    @cached_property
    def of_answers(self) -> TextCodec:
        """The same codec, whose texts show the special tokens that mark calls and thoughts."""
        marks = self.templates.marks
        shown = frozenset(token_id for token_id, token in self.special_ids.items() if token in marks)
        return replace(self, shown_ids=shown) if shown else self

    @cached_property
    def of_all_tokens(self) -> TextCodec:
        """The same codec, whose texts show every special token."""
        return replace(self, shown_ids=frozenset(self.special_ids))

    @cached_property
    def grammars(self) -> GrammarWriter:
        """The writer of grammars for answers."""
        return GrammarWriter({token: token_id for token_id, token in self.special_ids.items()})

    @cached_property
    def bad_words(self) -> Callable[[tuple[str | tuple[int, ...], ...]], tuple[tuple[int, ...], ...]]:
        """What returns the token ids of bad words, the same object while it is kept: many rows have the same words."""
        return lru_cache(_MOST_LISTS)(partial(bad_words_ids, self.tokenizer))

    @cached_property
    def decoder_rules(self) -> DecoderRules:
        """The rules by which a token settles the text so far."""
        return DecoderRules(self.tokenizer)

    @cached_property
    def _control_tokens(self) -> ControlTokens:
        return ControlTokens(self.tokenizer)

    @cached_property
    def _length(self) -> TextLength:
        return TextLength(self.tokenizer)

    def _column_variables(self, row: InputRow) -> dict[str, Any]:
        if missing := sorted(set(self.template_columns.values()) - set(row.columns)):
            raise RowError("template", f"template variables: the row has no column {missing}", "KeyError")
        return {variable: row.columns[column] for variable, column in self.template_columns.items()}


@cache
def _warn_of_second_begin(token: str, is_chat: bool) -> None:
    """Log a warning, once in a process."""
    why = "the chat template writes it twice" if is_chat else "the prompt has its text, and the tokenizer adds one"
    _log.warning(Event("a prompt begins with two begin tokens", token=token, why=why))


def _whole_characters(text: str) -> str:
    """Return the text. Raises RowError if it holds half a surrogate pair."""
    try:
        text.encode("utf-8")
    except UnicodeEncodeError as error:
        raise RowError("template", f"the prompt holds half a surrogate pair: {error}", "UnicodeEncodeError") from error
    return text


@cache
def _byte_of_character() -> dict[str, int]:
    """Return the byte that each character spells in byte-level tokenizers (GPT-2)."""
    from transformers.convert_slow_tokenizer import bytes_to_unicode

    return {character: byte for byte, character in bytes_to_unicode().items()}


def _taken(tokenizer: Any) -> Set[str]:
    """Return the names that no variable of a chat template may have: rows and commands set them otherwise."""
    return _CHAT_NAMES | signature(tokenizer.apply_chat_template).parameters.keys() - {"kwargs"}


def _refuse_taken_names(option: str, variables: Mapping[str, Any], taken: Set[str]) -> None:
    if clashes := sorted(taken & variables.keys()):
        raise ValueError(
            f"{option} names {clashes}, which the chat template gets from elsewhere; rename or remove them"
        )
