"""Asked: the fields that all requests for text share. Unsupported fields are refused by name.

https://platform.openai.com/docs/api-reference; the extensions have vLLM's names, and vLLM's meaning.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from pipeline.errors import FieldError
from pipeline.requests.body import (
    BOOLEAN,
    OBJECT,
    TEXT,
    Body,
    anything,
    asks,
    integer,
    labels,
    list_of,
    number,
    one_of,
    options,
    sampled,
    text,
)
from pipeline.requests.token_kinds import ALLOWED_IDS, BAD_WORDS, BIASES, FIELDS, STOPS, Form, form_of

_LABEL = text(512)
LABELS = labels(text(64), _LABEL, 16)
_UNKEPT = "Checked, and nothing is kept of it."
_STREAMED = "the answers of a batch are whole"
_NO_PLACE = "the results of a batch have no place for it"


@dataclass(frozen=True, kw_only=True)
class Asked(Body):
    """What a request to generate asks for."""

    unsupported: ClassVar[Mapping[str, tuple[Any, ...]]] = {
        "suffix": ("",),
        "tools": ([],),
        "tool_choice": ("none", "auto"),
        "parallel_tool_calls": (True, False),  # there are no tools to call
        "store": (False,),
        "service_tier": ("auto", "default"),
        "functions": ([],),
        "function_call": ("none", "auto"),
        "modalities": (["text"],),
        **dict.fromkeys(("audio", "prediction", "reasoning_effort", "verbosity"), ()),
        **dict.fromkeys(("web_search_options", "moderation"), ()),
        # vLLM's
        "documents": ([],),
        "priority": (0,),
        "length_penalty": (1, 1.0),
        "spaces_between_special_tokens": (True,),
        "logits_processors": ([],),
        "mm_processor_kwargs": ({},),
        "return_tokens_as_token_ids": (False,),
        **dict.fromkeys(("chat_template", "cache_salt", "kv_transfer_params", "vllm_xargs", "request_id"), ()),
    }
    id_prefix: ClassVar[str]  # of the answer's id
    default_max_tokens: ClassVar[int]

    model: str | None = asks(text(512), "The model, by a name under which it is served.")
    temperature: float | None = sampled(number(ge=0, le=2), "Temperature; 0 is greedy.")
    top_p: float | None = sampled(number(gt=0, le=1), "Keep the likeliest tokens of this total probability.")
    n: int | None = sampled(integer(ge=1, le=4096), "Choices in the answer to each prompt.")
    stream: bool | None = asks(BOOLEAN, "Send the answer as it grows.", in_batches=_STREAMED)
    stream_options: dict[str, Any] | None = asks(
        options(include_usage=BOOLEAN, continuous_usage_stats=BOOLEAN, include_obfuscation=one_of(False)),
        "Token counts at the end of a stream, or in each chunk.",
        in_batches=_STREAMED,
    )
    stop: list[str] | None = sampled(STOPS, "Strings that end the text; not part of it.")
    seed: int | None = sampled(integer(ge=-(2**63), lt=2**64), "The noise of the samples; a job writes the same.")
    frequency_penalty: float | None = sampled(number(ge=-2, le=2), "Penalty over the output, for each occurrence.")
    presence_penalty: float | None = sampled(number(ge=-2, le=2), "Penalty over the output, once for each token.")
    logit_bias: dict[int, float] | None = sampled(BIASES, "Numbers added to the logits of these token ids.")
    response_format: dict[str, Any] | None = asks(OBJECT, "The form of the text: text, json_object, json_schema.")
    user: str | None = asks(_LABEL, _UNKEPT)
    safety_identifier: str | None = asks(_LABEL, _UNKEPT)
    prompt_cache_key: str | None = asks(_LABEL, _UNKEPT)
    metadata: dict[str, str] | None = asks(LABELS, _UNKEPT)

    # Extensions, with vLLM's names.
    top_k: int | None = sampled(integer(ge=-1), "Keep the k likeliest tokens; 0 and -1 keep all.")
    min_p: float | None = sampled(
        number(ge=0, le=1), "Keep tokens at least this likely, relative to the likeliest one."
    )
    repetition_penalty: float | None = sampled(number(ge=0.01, le=10), "Penalty over prompt and output; 1 is none.")
    stop_token_ids: list[int] | None = sampled(
        list_of(integer(ge=0), 128), "Token ids that end the text, besides the model's own."
    )
    ignore_eos: bool | None = sampled(BOOLEAN, "Go on after the model's own end token.")
    min_tokens: int | None = sampled(integer(ge=0), "Output tokens before the end token or a stop may end the text.")
    allowed_token_ids: list[int] | None = sampled(ALLOWED_IDS, "The only token ids that may be written.")
    bad_words: list[str] | None = sampled(BAD_WORDS, "Texts that may not be written.")
    structured_outputs: dict[str, Any] | None = asks(
        OBJECT, "The form of the text: json, json_object, regex, choice or grammar."
    )
    guided_json: Any = asks(anything({}), "The older name of structured_outputs.json.")
    guided_regex: str | None = asks(TEXT, "The older name of structured_outputs.regex.")
    guided_choice: list[str] | None = asks(list_of(TEXT), "The older name of structured_outputs.choice.")
    guided_grammar: str | None = asks(TEXT, "The older name of structured_outputs.grammar.")
    skip_special_tokens: bool | None = asks(BOOLEAN, "false shows special tokens in the text.", is_of_row=True)
    include_stop_str_in_output: bool | None = asks(BOOLEAN, "true leaves the stop string in the text.", is_of_row=True)
    return_token_ids: bool | None = asks(
        BOOLEAN, "Add the token ids of prompt and output to the answer.", in_batches=_NO_PLACE
    )
    prompt_logprobs: int | None = asks(
        integer(ge=0, le=20),
        "The prompt's log-probabilities, and those of this many likely tokens.",
        in_batches=_NO_PLACE,
    )
    truncate_prompt_tokens: int | None = asks(
        integer(ge=-1),
        "Keep this many of the prompt's last tokens; -1 keeps as many as leave room for the output.",
        is_of_row=True,
    )
    # Our own extensions: each streamed chunk says which part of its text was drafted, and what was drafted in vain; and
    # how many tokens may be drafted in a round, which changes no text where verification is coupled.
    include_draft_spans: bool | None = asks(BOOLEAN, "Say in each chunk which text was drafted.", in_batches=_STREAMED)
    include_rejected_drafts: bool | None = asks(BOOLEAN, "Show what was drafted in vain as well.", in_batches=_STREAMED)
    num_speculative_tokens: int | None = asks(integer(ge=0), "Most tokens that are drafted in a round.", is_of_row=True)

    def check(self) -> None:
        """Raise FieldError for fields that contradict each other."""
        if self.stream_options is not None and not self.stream:
            raise FieldError("stream_options", "it needs stream to be true")
        if self.counts_continuously and not self.includes_usage:
            raise FieldError("stream_options.continuous_usage_stats", "it needs include_usage to be true")
        if self.truncate_prompt_tokens == 0:
            reason = "expected a number of tokens, or -1 for as many as there is room for"
            raise FieldError("truncate_prompt_tokens", reason)
        if self.prompt_logprobs is not None and self.stream:
            raise FieldError("prompt_logprobs", "it is for whole answers; leave out stream")
        if self.include_draft_spans and not self.stream:
            raise FieldError("include_draft_spans", "it needs stream to be true")
        if self.include_rejected_drafts and not self.include_draft_spans:
            raise FieldError("include_rejected_drafts", "it needs include_draft_spans to be true")

    def check_for_batch(self) -> None:
        """Raise FieldError for what a row of a batch cannot have. A field that is false asks for nothing."""
        for name, spec in self.table().items():
            if spec.in_batches and getattr(self, name) is not None and getattr(self, name) is not False:
                raise FieldError(name, f"{spec.in_batches}; leave it out", is_unsupported=True)

    def of_row(self) -> dict[str, Any]:
        """Return what a row of a batch has of the request beside its prompt and its parameters of sampling."""
        return self.given(name for name, spec in self.table().items() if spec.is_of_row)

    def sampling(self) -> dict[str, Any]:
        """Return the parameters of sampling that the request gives, by the names that they have there.

        `structured` is false where a request asks for plain text. Raises FieldError.
        """
        given = self.given(name for name, spec in self.table().items() if spec.is_sampling)
        if self.top_k is not None:
            given["top_k"] = max(0, self.top_k)
        if (form := self.form()) is not None or "response_format" in self.form_fields():
            given["structured"] = False if form is None else form[1]
        return given

    def form(self) -> Form | None:
        """Return the form that the output has, with the path of the field that says so. Raises FieldError."""
        return form_of(self.form_fields())

    def form_fields(self) -> dict[str, Any]:
        """Return the fields that are about the form, as chats have them."""
        return self.given(FIELDS)

    @property
    def form_field(self) -> str | None:
        """The path of the field that says what form the output has; None without a form."""
        form = self.form()
        return None if form is None else form[0]

    @property
    def generates(self) -> bool:
        """Whether any token is to be written behind the prompts."""
        return True

    @property
    def needs_prompt_text(self) -> bool:
        """Whether the text of prompts that came as token ids is needed."""
        return False

    @property
    def num_choices(self) -> int:
        """Choices in the answer to each prompt."""
        return self.n or 1

    @property
    def num_samples(self) -> int:
        """Samples drawn for each prompt, from which the choices are taken."""
        return self.num_choices

    @property
    def includes_usage(self) -> bool:
        """Whether the stream ends with a chunk of token counts."""
        return bool((self.stream_options or {}).get("include_usage"))

    @property
    def counts_continuously(self) -> bool:
        """Whether each chunk has the token counts so far."""
        return bool((self.stream_options or {}).get("continuous_usage_stats"))


def num_kept_tokens(wanted: int, max_tokens: int, max_model_len: int) -> int:
    """Return how many of a prompt's tokens stay for `truncate_prompt_tokens`: -1 leaves room for `max_tokens`.

    Raises FieldError for more than the context has.
    """
    if wanted == -1:
        return max(1, max_model_len - min(max_tokens, max_model_len - 1))
    if wanted > max_model_len:
        raise FieldError("truncate_prompt_tokens", f"expected at most {max_model_len}, which is this model's context")
    return wanted


def check_num_drafted(wanted: int | None, most: int) -> None:
    """Raise FieldError if `num_speculative_tokens` is more than the engine drafts in a round."""
    if wanted is not None and wanted > most:
        reason = f"this server drafts at most {most} tokens in a round, got {wanted}; ask for fewer, or leave it out"
        raise FieldError("num_speculative_tokens", reason)
