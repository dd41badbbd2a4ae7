"""ServeConfig: the configuration of `dray serve`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Annotated

import pydantic

from actors.engines import backend_of
from actors.settings import GeneratorSettings, ReplicaSettings
from endpoint.batches.batch import BatchSettings
from endpoint.edge.headers import LOCAL_NAMES, Keys, host_name, load_keys
from endpoint.http.bodies import Limits
from endpoint.service.served_model import MAX_NAME, DeploymentSettings, ServiceSettings
from jobs.config.fields import Flat
from jobs.config.loading import load
from pipeline.logs import LogSettings

if TYPE_CHECKING:
    from endpoint.edge.install import EdgeSettings
_MAX_EXAMPLE = 1000  # characters of a message that the page offers


@dataclass(frozen=True, kw_only=True)
class ServeSettings:
    """The endpoint: where it listens, what it is called, how much it takes on, and how its processes come and go."""

    host: str = "127.0.0.1"
    """Address to listen on; 0.0.0.0 for all of the machine's."""
    port: Annotated[int, pydantic.Field(ge=1, le=65535)] = 8000
    """Port to listen on."""
    adapters: Mapping[str, str] = field(default_factory=dict)
    """More models to serve: a name in requests to the folder of a LoRA adapter of models.target; each has engines."""
    service: Annotated[ServiceSettings, Flat()] = field(default_factory=ServiceSettings)
    deployment: Annotated[DeploymentSettings, Flat()] = field(default_factory=DeploymentSettings)
    replica: Annotated[ReplicaSettings, Flat()] = field(default_factory=ReplicaSettings)
    limits: Annotated[Limits, Flat()] = field(default_factory=Limits)
    batches: Annotated[BatchSettings, Flat(prefix="batches_")] = field(default_factory=BatchSettings)
    key_files: tuple[str, ...] = ()
    """Files with API keys, one a line; # begins a comment line."""
    key_variables: tuple[str, ...] = ()
    """Environment variables with API keys, separated by commas; no other process sees them."""
    open: bool = False
    """Answer everyone, without keys; either keys or this must be given."""
    allowed_hosts: tuple[str, ...] = ()
    """Names for this endpoint in the Host header; any unless given, but this machine's own with open and 127.0.0.1."""
    page: bool = False
    """Show the page at /: type a prompt, and watch it being answered with and without drafts."""
    page_examples: tuple[str, ...] = ()
    """Messages that the page offers to send; anyone may read them. Unless given, some of general use."""
    docs: bool = False
    """Show /docs and /openapi.json, behind the key like the rest."""
    # Without prompts: no log of the endpoint shows what a client wrote or got.
    logs: Annotated[LogSettings, Flat(prefix="log_", without=frozenset({"prompts"}))] = field(
        default_factory=LogSettings
    )
    ray_address: str | None = None
    """Ray cluster; unless given RAY_ADDRESS, one that `ray start` started on this machine, or one of its own (which
    "local" always means)."""

    def __post_init__(self) -> None:
        for adapter, folder in self.adapters.items():
            if not 1 <= len(adapter) <= MAX_NAME:
                raise ValueError(f"serve.adapters: expected names of 1 to {MAX_NAME} characters, got {adapter!r}")
            if not folder:
                raise ValueError(f"serve.adapters.{adapter}: expected the folder of a LoRA adapter, got {folder!r}")
        for name in self.allowed_hosts:
            if not name or host_name(name) != name.lower() or "/" in name:
                raise ValueError(f"serve.allowed_hosts: expected a name without scheme, port and path, got {name!r}")

    @property
    def is_local(self) -> bool:
        """Whether it listens for clients on this machine alone."""
        return f"[{self.host}]" in LOCAL_NAMES or self.host in LOCAL_NAMES


@dataclass(frozen=True, kw_only=True)
class ServeConfig:
    """Serves a model behind the OpenAI API: the target's own text, token for token, with the draft's help."""

    dry_run: bool = False
    """Print what would be served and stop; no model is loaded."""
    generator: Annotated[GeneratorSettings, Flat(without=frozenset({"sampling"}))]  # a request brings its own sampling
    serve: ServeSettings = field(default_factory=ServeSettings)
    """The endpoint: where it listens, how much it takes on, and how its processes come and go."""
    read_keys: Keys | None = None  # as `load_serve_config` found them; their variables may be gone since

    def __post_init__(self) -> None:
        if self.generator.models.candidates:
            raise ValueError(
                "models.draft is a list, of which a run takes one by a trial on its rows, and an endpoint has none; "
                "name one draft (`dray tune` finds it)"
            )
        backend_of(self.generator).check()
        self.generator.check_hang_timeout("serve.hang_timeout_s", self.serve.replica.hang_timeout_s)
        if self.generator.chat.template_columns:
            raise ValueError("chat.template_columns: requests have no columns; use chat.template_kwargs")
        examples = self.serve.page_examples
        if examples and not self.serve.page:
            raise ValueError("serve.page_examples are shown on the page; switch it on with serve.page")
        for index, example in enumerate(examples):
            if not 1 <= len(example.strip()) <= _MAX_EXAMPLE:
                raise ValueError(
                    f"serve.page_examples[{index}] must be a message of 1 to {_MAX_EXAMPLE} characters, got {example!r}"
                )

    def replica_settings(self) -> ReplicaSettings:
        """Return how an engine takes requests."""
        probe_timeout_s = 0.9 * self.serve.deployment.health_timeout_s
        return replace(
            self.serve.replica, probe_timeout_s=probe_timeout_s, num_reserved=self.serve.batches.reserved_slots
        )

    def edge_settings(self) -> EdgeSettings:
        """Return what surrounds the application, with the keys as they are now. Raises ValueError."""
        from endpoint.edge.install import EdgeSettings  # here, since it needs torch, which --help does not

        serve = self.serve
        hosts = frozenset(serve.allowed_hosts)
        if serve.open and serve.is_local:
            hosts |= LOCAL_NAMES
        return EdgeSettings(
            keys=self.keys(),
            limits=serve.limits,
            hosts=hosts or None,
            has_page=serve.page,
            page_examples=serve.page_examples,
            has_docs=serve.docs,
        )

    @property
    def own_variables(self) -> tuple[str, ...]:
        """The environment variables that it reads besides those of its fields."""
        return self.serve.key_variables

    def keys(self) -> Keys | None:
        """Return the keys as they were read, or else are in files and environment now; None if no key is needed.

        Raises ValueError.
        """
        serve = self.serve
        has_keys = bool(serve.key_files or serve.key_variables)
        if has_keys and serve.open:
            raise ValueError("serve.open lets everyone in, and there are serve.key_files or key_variables; drop one")
        if not has_keys and not serve.open:
            raise ValueError(
                "the endpoint would refuse every request: name API keys by serve.key_files or serve.key_variables, or "
                "say serve.open to answer everyone who can reach the port"
            )
        if self.read_keys is not None or not has_keys:
            return self.read_keys
        return load_keys(serve.key_files, serve.key_variables)


def load_serve_config(arguments: Sequence[str], prog: str) -> ServeConfig:
    """Return the configuration of these arguments, as `jobs.config.loading.load` does, with the API keys read."""
    config = load(ServeConfig, arguments, prog)
    return replace(config, read_keys=config.keys())
