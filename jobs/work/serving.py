"""The work of `dray serve`: the models are served behind the OpenAI API, on Ray Serve, until a signal comes.

After SIGTERM or Ctrl-C it accepts no new request, finishes those in flight, and ends. A second one ends it at once.
"""

import ctypes
import hashlib
import json
import logging
import os
import sys
import threading
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import Any
from uuid import uuid4

import ray
from ray.serve.exceptions import RayServeException

from actors.drafts.roster import start_roster
from actors.engines import backend_of
from actors.engines.footprint import made_of_in_words, slots_in_words
from actors.resources import describe_placement
from decoding.engine.draft_folder import check_replacement
from endpoint.batches.batch import BatchSettings
from endpoint.deployment import (
    APP_NAME,
    DeployedVersion,
    DeploymentSettings,
    check_gate,
    deploy,
    deployed_mark,
    deployed_version,
    is_deployed,
    make_application,
    refuse_direct_ingress,
    start,
    withdraw,
)
from endpoint.service.served_model import ServedModel
from jobs.config.fields import as_dict
from jobs.config.serve import ServeConfig
from jobs.driver.cluster import check_submitted, paths_of, start_ray, starts_own_ray
from jobs.driver.plan import settled
from jobs.driver.stopping import Exit, bad_configuration
from jobs.names import tell
from jobs.work.served_models import check_adapters, served_models
from pipeline.run.fingerprint import quick_model_fingerprint, tokenizer_fingerprint
from pipeline.storage.location import Location

_log = logging.getLogger(__name__)
_LOOK_EVERY_S = 5.0  # between looks whether the application still runs


def serve(config: ServeConfig) -> Exit:
    """Serve, and return the exit code."""
    with suppress(KeyboardInterrupt):
        try:
            hide_variables(config.serve.key_variables)
            models, deployment = settled_models(config)
            mark = uuid4().hex
            application = _application(config, models, deployment, mark) if not config.dry_run else None
        except (ValueError, OSError) as error:
            return bad_configuration(error)
        print(describe(config, models), flush=True)
        if application is None:
            return Exit.COMPLETE
        return _serve(config, application, mark, partial(_with_other_draft, config, models, deployment, mark))
    return Exit.INCOMPLETE  # a signal came before the start, or a second one, which drops requests in flight


def application_of(config: ServeConfig) -> Any:
    """Return the application of a configuration, which another process than this one deploys."""
    config = replace(config, serve=replace(config.serve, host="0.0.0.0"))  # not known here: Serve's own options say it
    return _application(config, *settled_models(config))


def settled_models(config: ServeConfig) -> tuple[list[ServedModel], DeploymentSettings]:
    """Return the models as they will be served, the endpoint's own first, and what each engine then holds."""
    refuse_direct_ingress()
    check_submitted({"serve.batches_path": config.serve.batches.path}, paths_of(config.generator.models))
    check_adapters(config)  # before a model is looked at, or downloaded
    _check_sharing(config)
    settings, deployment = settled(config.generator, config.serve.deployment, config.serve.ray_address)
    backend_of(settings).check_models()
    models = served_models(config, settings)
    if warning := backend_of(settings).lossy:
        _log.warning("warning: %s", warning)
    for warning in _shared(config):
        _log.warning("warning: %s", warning)
    return models, deployment


def _shared(config: ServeConfig) -> list[str]:
    """Return what keys are told of each other on purpose, in a sentence each."""
    replica, shared = config.serve.replica, []
    if replica.share_drafts:
        shared.append("a request may be shown what another key's requests wrote (serve.share_drafts)")
    if replica.share_prefixes:
        shared.append("cached_tokens and time tell that another key sent a prompt before (serve.share_prefixes)")
    return shared if config.keys() is not None else []


def _check_sharing(config: ServeConfig) -> None:
    """Raise ValueError for drafts that are looked up in the texts of all keys though this was not asked for."""
    has_own_drafts = config.keys() is not None and not config.serve.replica.share_drafts
    if has_own_drafts and (why := backend_of(config.generator).why_drafts_are_shared):
        raise ValueError(why)


def describe(config: ServeConfig, models: Sequence[ServedModel]) -> str:
    """Return what is served, as lines for a reader."""
    (own, *adapters), deployment, keys = models, config.serve.deployment, config.keys()
    settings, made_of = own.settings, made_of_in_words(own.settings, own.settings.models.target)
    engines = f"{deployment.min_replicas}"
    if deployment.max_replicas > deployment.min_replicas:
        engines += f" to {deployment.max_replicas}"
    if adapters:
        engines += " for each model"
    shared = "; ".join(_shared(config)) or "no key's texts or prompts serve another one"
    if keys is None:
        shared = "without keys all clients are one: the texts and prompts of each serve the others"
    ray_ports = "started here, on 127.0.0.1 alone"
    if not starts_own_ray(config.serve.ray_address):  # no key of the endpoint is asked for behind Ray's own ports
        ray_ports = (
            "the cluster that it joins; a program that reaches its nodes' ports can run code there and read metrics"
        )
    lines = [
        f"Serving {own.name!r} at http://{config.serve.host}:{config.serve.port}/v1",
        f"  target:  {settings.models.target} ({settings.models.device}, {settings.models.dtype}{made_of})",
        *(f"  adapter: {each.name!r} from {each.target}" for each in adapters),
        f"  engine:  {backend_of(settings).describe()}",
        f"  keys:    {'none: everyone who can reach the port is answered' if keys is None else len(keys)}",
        f"  shared:  {shared}",
        f"  engines: {engines}, {slots_in_words(settings)} slots each",
        f"  placement: {describe_placement(settings, deployment.max_replicas)}",
        f"  Ray:     {ray_ports}",
        f"  batches: {_batch_settings(config).path or 'off (serve.batches_path switches /v1/batches on)'}",
    ]
    return "\n".join(lines)


def _application(
    config: ServeConfig,
    models: Sequence[ServedModel],
    deployment: DeploymentSettings,
    mark: str = "",
    number: str | None = None,
) -> Any:
    """Return the application, made before anything starts, so that errors appear at once; only 'split' needs Ray.

    `number` is that of the processes that it goes on with; by default it has processes of its own.
    """
    settings = models[0].settings
    roster = None
    if settings.has_draft_actors:
        start_ray(config.serve.ray_address)
        roster = start_roster(settings, APP_NAME, config.serve.logs, config.serve.deployment.min_replicas)
    return make_application(
        models,
        config.edge_settings(),
        config.replica_settings(),
        deployment,
        config.serve.logs,
        batch_settings=_batch_settings(config),
        roster=roster,
        mark=mark,
        version=DeployedVersion(number or uuid4().hex, _rest(config, models), settings.models.draft),
    )


def _batch_settings(config: ServeConfig) -> BatchSettings:
    """Return where files and batches are kept, as every process finds it. Raises ValueError for what is no place."""
    batches = config.serve.batches
    return batches if batches.path is None else replace(batches, path=Location.parse(batches.path).name)


def _with_other_draft(
    config: ServeConfig, models: Sequence[ServedModel], deployment: DeploymentSettings, mark: str
) -> Any:
    """Return the application for the processes that run, if it differs from theirs by the draft alone; else None."""
    deployed, draft = deployed_version(), models[0].settings.models.draft
    if deployed is None or not deployed.of_next(_rest(config, models), draft):
        return None
    assert draft is not None
    assert deployed.draft is not None
    try:
        for model in models:
            check_replacement(draft, deployed.draft, model.settings.models.target)
    except ValueError as error:
        print(f"the engines are replaced, since {error}", file=sys.stderr)
        return None
    print(f"the engines go on, and take the draft {draft}", flush=True)
    return _application(config, models, deployment, mark, deployed.number)


def _rest(config: ServeConfig, models: Sequence[ServedModel]) -> str:
    """Return a digest of everything but the draft; an empty text if the draft cannot be replaced alone."""
    settings = models[0].settings
    if backend_of(settings).why_draft_stays is not None or settings.has_draft_actors:
        return ""
    said = as_dict(config)
    said["models"] = {name: value for name, value in said["models"].items() if name != "draft"}
    keys = config.keys()
    contents = [
        (
            model.name,
            quick_model_fingerprint(model.settings.models.target),
            tokenizer_fingerprint(model.settings.models.tokenizer or model.settings.models.target),
        )
        for model in models
    ]
    parts = json.dumps(said, sort_keys=True, default=str), keys and keys.fingerprint, contents
    return hashlib.sha256(repr(parts).encode()).hexdigest()


def _serve(
    config: ServeConfig, application: Any, mark: str, with_other_draft: Callable[[], Any] = lambda: None
) -> Exit:
    """Run the application, which has this mark, until a signal comes.

    `with_other_draft` returns one for the processes that run already, if that one will do.
    Raises KeyboardInterrupt if a signal comes before the application runs, or a second signal after that.
    """
    logging.getLogger("ray.serve").setLevel(logging.ERROR)
    is_own_ray = starts_own_ray(config.serve.ray_address)
    try:
        start_ray(config.serve.ray_address)
        start(config.serve.host, config.serve.port, config.serve.limits, config.serve.service.request_timeout_s)
        try:
            check_gate(config.serve.limits)
        except ValueError as error:
            return bad_configuration(error)
        stays = is_own_ray or is_deployed()  # an application of this name that was there before
        try:
            deploy((is_deployed() and with_other_draft()) or application)
        except BaseException:
            if not stays:
                withdraw(drain_timeout_s=0.0)
            raise
        return _until_a_signal(mark, config.serve.deployment.drain_timeout_s)
    except (RuntimeError, ValueError, OSError, ray.exceptions.RayError, RayServeException) as error:
        tell(f"error: {error}")
        return Exit.FAILED
    finally:
        if is_own_ray and ray.is_initialized():
            ray.shutdown()  # this ends Serve, too, without its message that the controller did not end well


def _until_a_signal(mark: str, drain_timeout_s: float) -> Exit:
    """Wait for a signal, then withdraw what was deployed with this mark; a later command's deployment stays."""
    try:
        print("ready; SIGTERM or Ctrl-C lets what is in flight finish, and ends", flush=True)
        _wait()
    except KeyboardInterrupt:
        if deployed_mark() != mark and is_deployed():
            print("ending: the endpoint was deployed again by another command, and is left to it", file=sys.stderr)
            return Exit.COMPLETE
        print("ending: nothing new is taken, what is in flight is finished", file=sys.stderr, flush=True)
        withdraw(drain_timeout_s)
        return Exit.COMPLETE
    return Exit.FAILED


def _wait() -> None:
    """Wait until the application is gone, removed by another command. A signal raises KeyboardInterrupt."""
    never = threading.Event()
    while not never.wait(_LOOK_EVERY_S):
        if not is_deployed():
            print("error: the application was taken away", file=sys.stderr)
            return


def hide_variables(names: Iterable[str]) -> None:
    """Remove variables with secrets from the environment of this process, and from what the system shows of it.

    Call it once they have been read and before another process is started: a process hands its environment to all that
    it starts, Ray's among them, and Linux shows the environment that it was started with in `/proc/PID/environ`.
    """
    c_library = ctypes.CDLL(None)
    c_library.getenv.restype = ctypes.c_void_p
    for name in names:
        if (address := c_library.getenv(os.fsencode(name))) is not None:
            ctypes.memset(address, 0, len(ctypes.string_at(address)))  # `del` alone leaves the memory that /proc shows
        os.environ.pop(name, None)
