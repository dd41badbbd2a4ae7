"""ServeConfig: what `jobs.serve` is told, checked as every configuration is."""

from __future__ import annotations

from collections.abc import Sequence

from pydantic import Field

from actors.settings import (
    ChatSettings,
    DraftSettings,
    GeneratorSettings,
    ModelSettings,
    Placement,
    StageSettings,
)
from actors.workers.replica import ReplicaSettings
from decoding.engine.options import EngineOptions
from endpoint.deployment import DeploymentSettings
from endpoint.edge.auth import Keys, load_keys
from endpoint.edge.install import EdgeSettings
from endpoint.http.limits import Limits
from endpoint.service.service import ServiceSettings
from jobs.config.run import YamlConfig, check_draft_timeouts, load_settings_of
from jobs.config.sections import ChatSection, DraftsSection, EngineSection, ModelsSection, ServeSection, StagesSection
from pipeline.logs import LogSettings
from pipeline.streaming.stream import ActorPool


class ServeConfig(YamlConfig):
    """Serves a model behind the OpenAI API: the target's own text, token for token, with the draft's help."""

    dry_run: bool = Field(False, description="Print what would be served and stop; no model is loaded.")
    models: ModelsSection
    stages: StagesSection = StagesSection()
    chat: ChatSection = ChatSection()
    engine: EngineSection = EngineSection()
    placement: Placement = Field(
        "colocated", description="Draft model in the engine's process (colocated), or in draft actors (split)."
    )
    drafts: DraftsSection = DraftsSection()
    serve: ServeSection = ServeSection()

    def generator_settings(self) -> GeneratorSettings:
        """The engine's part. Sampling is the request's business, and so are seeds."""
        return GeneratorSettings(
            models=ModelSettings(**self.models.model_dump()),
            engine=EngineOptions(**self.engine.model_dump()),
            chat=ChatSettings(**self.chat.model_dump()),
            stages=StageSettings(**self.stages.model_dump()),
            placement=self.placement,
            drafts=DraftSettings(**self.drafts.model_dump()),
        )

    def deployment_settings(self, num_gpus: float) -> DeploymentSettings:
        """How many processes, and what each holds: so many GPUs, since the device is known."""
        values = self.serve.model_dump(include=set(DeploymentSettings.__dataclass_fields__))
        return DeploymentSettings(**{**values, "num_gpus": num_gpus})

    def replica_settings(self, fingerprint: str = "") -> ReplicaSettings:
        """How an engine takes requests, and which: those for an engine of this fingerprint."""
        return ReplicaSettings(
            max_waiting=self.serve.max_waiting,
            probe_timeout_s=0.9 * self.serve.health_timeout_s,
            hang_timeout_s=self.serve.hang_timeout_s,
            fingerprint=fingerprint,
        )

    def service_settings(self, model: str, fingerprint: str) -> ServiceSettings:
        """What the application says; `model` is its name where the configuration has none."""
        return ServiceSettings(
            model=self.serve.model or model,
            aliases=self.serve.aliases,
            fingerprint=fingerprint,
            max_choices=self.serve.max_choices,
            request_timeout_s=self.serve.request_timeout_s,
        )

    def keys(self) -> Keys | None:
        """The keys as they are in files and environment now; None where everybody may ask. Raises ValueError."""
        serve = self.serve
        has_keys = bool(serve.key_files or serve.key_variables)
        if has_keys and serve.open:
            raise ValueError("serve.open lets everybody in, and there are serve.key_files or key_variables; drop one")
        if not has_keys and not serve.open:
            raise ValueError(
                "nobody may ask: name API keys by serve.key_files or serve.key_variables, or say serve.open to answer "
                "everybody who can reach the port"
            )
        return load_keys(serve.key_files, serve.key_variables) if has_keys else None

    def limits(self) -> Limits:
        """Of one request. Raises ValueError."""
        if self.serve.max_body_bytes < 1:
            raise ValueError(f"serve.max_body_bytes must be at least 1, got {self.serve.max_body_bytes}")
        return Limits(max_body_bytes=self.serve.max_body_bytes, body_seconds=self.serve.body_timeout_s)

    def edge_settings(self) -> EdgeSettings:
        """What is around the application. Raises as `keys` and `limits` do."""
        serve = self.serve
        return EdgeSettings(keys=self.keys(), limits=self.limits(), has_page=serve.page, has_docs=serve.docs)

    def pool(self) -> ActorPool:
        """The engines as a pool, for what is known of pools."""
        serve = self.serve
        return ActorPool(
            min_actors=serve.min_replicas,
            max_actors=serve.max_replicas,
            num_cpus=serve.num_cpus,
            num_gpus=serve.num_gpus,
            memory=serve.memory,
            resources=serve.resources,
            accelerator_type=serve.accelerator_type,
        )

    def log_settings(self) -> LogSettings:
        """What every process logs: never a prompt or an output."""
        return LogSettings(format=self.serve.log_format, level=self.serve.log_level)


def load_serve_config(arguments: Sequence[str], prog: str) -> ServeConfig:
    """The configuration of these command-line arguments, or a ValueError that names every wrong field."""
    config = load_settings_of(ServeConfig, arguments, prog)
    settings = config.generator_settings()
    config.deployment_settings(config.serve.num_gpus), config.replica_settings(), config.pool()  # their own checks
    config.service_settings("model", ""), config.edge_settings()
    check_draft_timeouts(settings, config.serve.hang_timeout_s)
    if config.chat.template_columns:
        raise ValueError("chat.template_columns: requests have no columns; use chat.template_kwargs")
    if settings.stages.is_apart and config.serve.hang_timeout_s <= settings.stages.longest_step_s:
        raise ValueError(
            f"serve.hang_timeout_s is {config.serve.hang_timeout_s:g}, but an engine that replaces stages may need "
            f"{settings.stages.longest_step_s:g} seconds for a step; raise it"
        )
    return config
