"""The sections of a RunConfig: every field with its words. The packages' own dataclasses check the values."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import BaseModel, ByteSize, ConfigDict, Field

from actors.settings import DraftStrategy, Strategy
from decoding.checkpoint.loading import DType
from decoding.device import Device
from decoding.drafters import DrafterName
from decoding.engine.options import DraftLength
from decoding.sampling.verify import Verification
from pipeline.inputs.options import Format
from pipeline.logs import LogFormat, LogLevel


class Section(BaseModel):
    """Values that do not change, and no names but these."""

    model_config = ConfigDict(frozen=True, extra="forbid")


class InputSection(Section):
    """What to read."""

    path: str | list[str] = Field(description="File, folder or glob, or a list of them; local or a URI (s3://, gs://).")
    format: Format = Field("auto", description="Input format; auto goes by file name.")
    prompt_column: str = Field("prompt", description="Column with the prompt as text.")
    messages_column: str = Field("messages", description="Column with chat messages; a row has a prompt or messages.")
    prompt_template: str | None = Field(None, description='Prompt made from columns, such as "Question: {question}".')
    id_column: str | None = Field(None, description="Column with your own id of a row, copied to the output.")
    override_column: str = Field("sampling", description="Column with a row's own sampling parameters, if present.")
    carry_columns: tuple[str, ...] = Field((), description="Columns copied to the output as they are.")


class OutputSection(Section):
    """Where to write."""

    path: str = Field(description="The run directory: new, or that of a run to go on with; local or a URI.")


class ModelsSection(Section):
    """Which models, where and how exact."""

    target: str = Field(description="Target model: a folder with safetensors, or a hub name.")
    draft: str | None = Field(None, description="Draft model, for drafter 'model'.")
    tokenizer: str | None = Field(None, description="Tokenizer folder; the target's unless given.")
    device: Device = Field("auto", description="Where to run; auto takes GPUs if the cluster has any.")
    dtype: DType = Field("auto", description="Weights and arithmetic; auto is float32 on CPU, else the checkpoint's.")


class StagesSection(Section):
    """The target over processes of its own, by layers and within them, if it is too large for a node or a GPU."""

    count: int = Field(1, description="Stages of each engine's target: ranges of its layers.")
    tensor_parallel: int = Field(1, description="Processes of one node that share out every layer of a stage.")
    num_cpus: float = Field(1.0, ge=0, description="Logical CPUs a stage's process holds; its threads on CPU.")
    num_gpus: float = Field(
        0.0, ge=0, description="GPUs a stage's process holds; 1 where the device is cuda and this 0."
    )
    memory: ByteSize | None = Field(None, description="Memory a stage's process holds, such as 80GiB.")
    resources: dict[str, float] = Field({}, description="Custom resources a stage's process holds, by their names.")
    label_selector: dict[str, str] = Field({}, description="Labels of the nodes that stages may run on.")
    strategy: Strategy = Field("PACK", description="Stages of an engine on few nodes, or on many.")
    most_restarts: int = Field(10, description="Attempts to bring a lost stage up again before it fails.")
    timeout_s: float = Field(120.0, description="Seconds for a step of all stages; one that takes longer is replaced.")
    start_timeout_s: float = Field(
        480.0, description="Seconds for loading the weights; a stage that takes longer is replaced."
    )


class ChatSection(Section):
    """How messages become a prompt."""

    chat_template: str | None = Field(None, description="Jinja template in place of the tokenizer's own.")
    system_prompt: str | None = Field(None, description="System message before chats that have none.")
    template_kwargs: dict[str, Any] = Field({}, description="Template variables with one value for the run.")
    template_columns: dict[str, str] = Field({}, description="Template variable -> column that holds its value.")


class EngineSection(Section):
    """How an engine runs. Nothing here but max_model_len and verification can change a token (float32)."""

    drafter: DrafterName | None = Field(None, description="What drafts; 'model' if there is a draft, else 'none'.")
    num_speculative_tokens: int = Field(8, description="Most tokens a row drafts in a round (1 to 64).")
    draft_length: DraftLength = Field("adaptive", description="Tokens to draft: as many as pay, or always the most.")
    verification: Verification = Field("coupled", description="coupled: the target's own tokens; rejection: its law.")
    num_slots: int = Field(16, description="Rows an engine works on at once.")
    max_prefill_tokens: int | None = Field(
        None, description="Prompt tokens read between two rounds of full slots; 512, on CUDA 2048."
    )
    max_model_len: int | None = Field(
        None, description="Tokens of prompt and output; the target's context, at most 4096."
    )


class SamplingSection(Section):
    """The target's distribution and the text's length; a row may override any of it."""

    temperature: float = Field(1.0, description="0 is greedy.")
    top_k: int = Field(0, description="Keep the k most likely tokens; 0 keeps all.")
    top_p: float = Field(1.0, description="Keep the most likely tokens of this total probability.")
    min_p: float = Field(0.0, description="Keep tokens at least this likely, relative to the most likely one.")
    repetition_penalty: float = Field(1.0, description="Over prompt and output, multiplicative; 1 is none.")
    presence_penalty: float = Field(0.0, description="Over the output, once a token id (-2 to 2).")
    frequency_penalty: float = Field(0.0, description="Over the output, per occurrence (-2 to 2).")
    logit_bias: dict[int, float] = Field({}, description="Token id -> added to its logit (-100 to 100).")
    n: int = Field(1, description="Samples per prompt.")
    max_tokens: int = Field(256, description="Most output tokens of a sample.")
    min_tokens: int = Field(0, description="Output tokens before an end is allowed.")
    stop: tuple[str, ...] | str = Field((), description="Strings that end the text; not part of it.")
    stop_token_ids: tuple[int, ...] = Field((), description="Token ids that end the text.")
    ignore_eos: bool = Field(False, description="Go on after the model's own end token.")
    logprobs: int | None = Field(None, description="Log-probabilities of each token and the k most likely (0 to 20).")


class ActorsSection(Section):
    """The pool of engines."""

    min_actors: int = Field(1, description="Actors to keep while units wait.")
    max_actors: int = Field(1, description="Actors to grow to.")
    initial_actors: int | None = Field(
        None, description="Actors to ask for at once, and to keep while units wait; min_actors unless given."
    )
    num_cpus: float = Field(1.0, gt=0, description="Logical CPUs an actor holds; its threads on CPU.")
    num_gpus: float = Field(0.0, ge=0, description="GPUs an actor holds; 1 when the device is cuda and this is 0.")
    memory: ByteSize | None = Field(None, description="Memory an actor holds, such as 80GiB.")
    resources: dict[str, float] = Field({}, description="Custom resources an actor holds, by their names.")
    accelerator_type: str | None = Field(None, description="Kind of GPU, as Ray names it, such as H100.")
    label_selector: dict[str, str] = Field({}, description="Labels of the nodes that actors may run on.")
    fallback_label_selectors: tuple[dict[str, str], ...] = Field(
        (), description="Labels to be content with where those do not exist, in order of preference."
    )
    units_in_flight: int = Field(2, description="Work units an actor works on at once.")


class DraftsSection(Section):
    """The draft actors of placement 'split'."""

    per_target: float = Field(
        1.0, description="Draft actors for an engine: 2 are two each, 0.5 is one for two engines."
    )
    num_cpus: float = Field(1.0, description="Logical CPUs a draft actor holds; its threads on CPU.")
    num_gpus: float = Field(
        0.0, description="GPUs a draft actor holds, also a share of one; without one it runs on CPU."
    )
    memory: ByteSize | None = Field(None, description="Memory a draft actor holds, such as 16GiB.")
    resources: dict[str, float] = Field({}, description="Custom resources a draft actor holds, by their names.")
    accelerator_type: str | None = Field(None, description="Kind of GPU of a draft actor, as Ray names it, such as L4.")
    label_selector: dict[str, str] = Field({}, description="Labels of the nodes that draft actors may run on.")
    strategy: DraftStrategy = Field(
        "PACK", description="Placement group of the draft actors: PACK or SPREAD over nodes."
    )
    timeout_s: float = Field(2.0, description="Seconds a round waits for its draft before it goes on without.")
    start_timeout_s: float = Field(300.0, description="Seconds an engine waits for its draft actors when it starts.")
    most_reconnects: int = Field(16, description="Draft actors an engine may lose before it goes on without for good.")
    most_candidates: int = Field(
        64, description="Under rejection a draft actor draws from so many best tokens, whose law it sends; 0: from all."
    )


class RunSection(Section):
    """The run as a whole."""

    seed: int = Field(0, description="Seed of all noise at temperature > 0.")
    rows_per_unit: int = Field(256, ge=1, description="Input rows in a work unit: what a crash can cost at most.")
    max_error_rate: float = Field(
        0.5, ge=0, le=1, description="Fail when more than this share of all rows failed; stops early after 100 rows."
    )
    no_progress_timeout_s: float = Field(
        3600.0, gt=0, description="Fail when no unit is committed for so many seconds."
    )
    hang_timeout_s: float = Field(
        900.0, gt=0, description="Seconds for one step of an engine; a process that takes longer hangs, and is ended."
    )
    grace_period_s: float = Field(
        120.0, ge=0, description="Seconds that units in flight get to finish after SIGTERM; then they are dropped."
    )
    lease_timeout_s: float = Field(
        60.0, gt=0, description="A driver that gives no sign of life for so many seconds loses the run to the next one."
    )
    backup_units: bool = Field(
        True,
        description="At the end, idle actors begin backups of the units that others are still at; who commits first "
        "wins. Not under verification 'rejection', where the faster of two texts is no fair draw.",
    )
    progress: Literal["auto", "bar", "lines", "none"] = Field(
        "auto", description="Progress: a bar on a terminal, else lines."
    )
    log_format: LogFormat = Field(
        "text", description="Log lines as text, or as JSON objects, which then are all that the driver's stderr has."
    )
    log_level: LogLevel = Field(
        "info", description="Least level of logged events. In text the driver logs warnings and errors only: it prints."
    )
    log_prompts: bool = Field(False, description="Log the message of a failed row and how its prompt begins.")
    ray_address: str | None = Field(None, description="Ray cluster; RAY_ADDRESS, or a local one, unless given.")


class ServeSection(Section):
    """The endpoint: where it listens, what it is called, how much it takes on, and how its processes come and go."""

    host: str = Field("127.0.0.1", description="Address to listen on; 0.0.0.0 for all of the machine's.")
    port: int = Field(8000, ge=1, le=65535, description="Port to listen on.")
    model: str | None = Field(None, description="The model's name in requests; that of the target's folder by default.")
    aliases: tuple[str, ...] = Field((), description="Other names of it.")
    min_replicas: int = Field(1, description="Engines to keep.")
    max_replicas: int = Field(1, description="Engines to grow to under load.")
    target_ongoing_requests: float | None = Field(
        None, description="Requests of an engine beyond which more are added; as many as it has slots by default."
    )
    upscale_delay_s: float = Field(10.0, description="Seconds of load before engines are added.")
    downscale_delay_s: float = Field(300.0, description="Seconds without it before they are taken away.")
    num_ingresses: int = Field(1, description="Processes that speak HTTP and text in front of the engines.")
    num_cpus: float = Field(1.0, gt=0, description="Logical CPUs an engine holds; its threads on CPU.")
    num_gpus: float = Field(0.0, ge=0, description="GPUs an engine holds; 1 when the device is cuda and this is 0.")
    memory: ByteSize | None = Field(None, description="Memory an engine holds, such as 80GiB.")
    resources: dict[str, float] = Field({}, description="Custom resources an engine holds, by their names.")
    accelerator_type: str | None = Field(None, description="Kind of GPU, as Ray names it, such as H100.")
    max_waiting: int = Field(64, description="Samples that may wait for a slot of an engine; then 429.")
    max_choices: int = Field(128, description="Samples that one request may ask for, over all of its prompts.")
    request_timeout_s: float = Field(600.0, description="Seconds for a request, waiting included; then 504.")
    drain_timeout_s: float = Field(120.0, description="Seconds that requests in flight get when an engine is to go.")
    max_surge_percent: float = Field(100.0, description="Engines a rolling update starts before it ends old ones.")
    health_period_s: float = Field(10.0, description="Seconds between looks at an engine's health.")
    health_timeout_s: float = Field(30.0, description="Seconds for such a look; it writes a token if none was lately.")
    hang_timeout_s: float = Field(
        900.0, gt=0, description="Seconds for one step of an engine; a process that takes longer hangs, and is ended."
    )
    key_files: tuple[str, ...] = Field((), description="Files with API keys, one a line; # begins a comment line.")
    key_variables: tuple[str, ...] = Field((), description="Environment variables with API keys, by commas.")
    open: bool = Field(False, description="Answer everybody, without keys; one of the two must be said.")
    max_body_bytes: ByteSize = Field(ByteSize(8 * 2**20), description="Largest body of a request; then 413.")
    body_timeout_s: float = Field(30.0, gt=0, allow_inf_nan=False, description="Seconds for a body to come; then 408.")
    page: bool = Field(False, description="Show the page at /: type a prompt and watch it being written.")
    docs: bool = Field(False, description="Show /docs and /openapi.json, behind the key like the rest.")
    log_format: LogFormat = Field("text", description="Log lines as text, or as JSON objects.")
    log_level: LogLevel = Field("info", description="Least level of logged events.")
    ray_address: str | None = Field(None, description="Ray cluster; RAY_ADDRESS, or a local one, unless given.")
