"""The cluster: Ray is joined or started without its notices, and tells which device the actors get.

A job may run in a copy of its folder, which the cluster deletes: `ray job submit --working-dir .` packs the folder,
without what .gitignore and .rayignore name, and each node unpacks it under its own session
(https://docs.ray.io/en/latest/cluster/running-applications/job-submission/quickstart.html).
"""

import os
import socket
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, redirect_stderr
from pathlib import Path
from typing import Any, Literal, TextIO, TypeVar

import ray
import torch

from actors.resources import settle_device
from actors.settings import GeneratorSettings, ModelSettings
from jobs.driver.stopping import keeping_sigterm
from pipeline.ray_internals import cluster_address, is_own_ray, keep_ray_on_loopback
from pipeline.streaming.pool import ActorResources
from training.trainer.options import ModelOptions

_PACKAGES, _PACKAGE = "working_dir_files", "_ray_pkg_"  # the folder of copies, and how a copy's name begins
_Options = Mapping[str, str | Sequence[str] | None]  # paths or URIs, or a model's name, by the names of options
_Device = Literal["cpu", "cuda"]
_TRIES, _BETWEEN_TRIES_S, _ANSWERS_WITHIN_S = 5, 2.0, 3.0
_Actors = TypeVar("_Actors", bound=ActorResources)


def pick_device(settings: GeneratorSettings, actors: _Actors, ray_address: str | None) -> tuple[_Device, _Actors]:
    """Return the device, and the actors with their GPUs; join the cluster if only that can tell what `auto` means."""
    device, is_remote = settings.models.device, not starts_own_ray(ray_address)
    if device == "auto" and is_remote:
        start_ray(ray_address)
    num_gpus = ray.cluster_resources().get("GPU", 0.0) if ray.is_initialized() else float(torch.cuda.device_count())
    if device == "cuda" and is_remote:
        num_gpus = max(num_gpus, 1.0)  # the cluster's, not this machine's
    if settings.stages.is_apart and device != "cpu":  # the stages take the GPUs; the actor that drives them takes none
        has_gpus = num_gpus + settings.stages.num_gpus + actors.num_gpus > 0
        return ("cuda" if has_gpus or device == "cuda" else "cpu"), actors
    return settle_device(device, actors, num_gpus)


def start_ray(ray_address: str | None) -> None:
    """Join the cluster that `find_cluster` finds, or start a local one; doing it twice is harmless.

    A local one listens on 127.0.0.1 alone. Raises ConnectionError where Ray cannot.
    """
    if ray.is_initialized():
        return
    address = find_cluster(ray_address)
    # Both silence warnings of Ray 2.60 that a local run always prints and that need no action.
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
    os.environ.setdefault("RAY_BACKEND_LOG_LEVEL", "fatal")
    options: dict[str, Any] = {"address": address} if address else {"address": "local", "include_dashboard": False}
    if not address:
        keep_ray_on_loopback()
    try:
        with _without_stderr(), keeping_sigterm():
            ray.init(log_to_driver=False, logging_level="ERROR", **options)
    except Exception as error:  # a start that takes too long is a plain Exception of Ray's
        said = f"({type(error).__name__}: {' '.join(str(error).split())})"
        if address:
            what = f"cannot join the Ray cluster at {address} {said}; check the address, and that Ray runs there"
        else:
            what = f"cannot start Ray on this machine {said}; if the machine is busy, run the same command again later"
        raise ConnectionError(what) from error


def cluster_in_words(ray_address: str | None) -> str:
    """Return what the cluster that `start_ray` joined or started has, for a reader."""
    resources = ray.cluster_resources()
    has = f"{resources.get('CPU', 0):g} CPUs, {resources.get('GPU', 0):g} GPUs"
    if starts_own_ray(ray_address):
        return f"Ray started on this machine: {has}"
    num_nodes = sum(node["Alive"] for node in ray.nodes())
    why = "" if _given(ray_address) else " (`ray start` started it on this machine; RAY_ADDRESS=local begins another)"
    return f"Ray joined at {ray.get_runtime_context().gcs_address}{why}: {num_nodes} nodes, {has}"


def starts_own_ray(ray_address: str | None) -> bool:
    """Return whether `start_ray` starts a local cluster, or has: it ends with this process.

    A cluster that is named is joined, also where this process had started it for something else. It need not answer
    for that, so a plan can be made where it cannot be reached.
    """
    if _given(ray_address) not in (None, "local"):
        return False
    return is_own_ray() if ray.is_initialized() else find_cluster(ray_address) is None


def find_cluster(ray_address: str | None) -> str | None:
    """Return the address of the cluster that `start_ray` joins; None if it starts a local one.

    It is the cluster at this address, at RAY_ADDRESS, or the one that `ray start` has started on this machine. Raises
    ConnectionError for a given one that does not answer; a trace of one on this machine that has ended is no cluster.
    """
    given = _given(ray_address)
    scheme, _, proxy = (given or "").rpartition("://")
    try:
        address = proxy if scheme == "ray" else cluster_address(given)
    except (ValueError, OSError) as error:
        raise ConnectionError(
            f"cannot join the Ray cluster at {given} ({' '.join(str(error).split())}); check the address: it is "
            "host:port, or ray://host:port; one that begins with http:// is for `ray job submit` alone"
        ) from error
    if address is None or given is None:
        return address if address is not None and _answers(address, 1) else None
    if _answers(address, _TRIES):
        return given if scheme == "ray" else address
    raise ConnectionError(
        f"cannot join the Ray cluster at {given}: nothing answers at {address}; check the option ray_address and "
        "RAY_ADDRESS, and that Ray runs there. RAY_ADDRESS=local starts Ray on this machine"
    )


def _given(ray_address: str | None) -> str | None:
    return ray_address or os.environ.get("RAY_ADDRESS") or None


def _answers(address: str, tries: int) -> bool:
    """Return whether something listens at host:port; a head that is being replaced may need some seconds."""
    host, _, port = address.rpartition(":")
    for left in reversed(range(tries)):
        try:
            with socket.create_connection((host.strip("[]"), port), timeout=_ANSWERS_WITHIN_S):
                return True
        except OSError:
            if left:
                time.sleep(_BETWEEN_TRIES_S)
    return False


@contextmanager
def _without_stderr() -> Iterator[None]:
    """Drop what native code writes to stderr: Ray's notice about the log level above. Exceptions pass through.

    What Python writes there still comes, such as the progress of the command, unless it goes to a log.
    """
    saved, nowhere = os.dup(2), os.open(os.devnull, os.O_WRONLY)
    is_plain = getattr(sys.stderr, "rich_proxied_file", sys.stderr) is sys.__stderr__
    kept: TextIO = open(os.dup(2), "w", buffering=1) if is_plain else sys.stderr  # noqa: SIM115 - threads may hold it
    try:
        os.dup2(nowhere, 2)
        with redirect_stderr(kept):
            yield
    finally:
        os.dup2(saved, 2)
        os.close(saved)
        os.close(nowhere)


def submitted_copy() -> Path | None:
    """Return the copy in which this process was started; None if it runs elsewhere."""
    here = Path.cwd()
    copies = (each for each in (here, *here.parents) if each.parent.name == _PACKAGES)
    return next((each for each in copies if each.name.startswith(_PACKAGE)), None)


def paths_of(models: ModelSettings | ModelOptions) -> dict[str, str | Sequence[str] | None]:
    """Return the paths of models, by the names of their options."""
    paths = {f"models.{name}": getattr(models, name) for name in ("target", "draft", "tokenizer")}
    return {**paths, "models.draft": paths["models.draft"] or getattr(models, "candidates", None)}


def check_submitted(outputs: _Options, inputs: _Options) -> None:
    """Raise ValueError if a submitted job would write into its copy, or read what was not copied.

    What is read from the copy is noted on standard error: another submission cannot go on with the run.
    """
    for option, path in _in_copy(outputs):
        raise ValueError(
            f"{option} {path!r} lies in the copy of your folder in which this submitted job runs, and the cluster "
            "deletes that copy; name an absolute path that all nodes share, or a URI such as s3://bucket/corpus"
        )
    for option, path in _in_copy(inputs):
        if Path(path).expanduser().exists():
            print(
                f"note: {option} {path!r} is read from the copy of your folder in which this submitted job runs; "
                "another submission cannot go on with this run. An absolute path that all nodes share, or a URI, stays",
                file=sys.stderr,
            )
            continue
        is_on_hub = path.count("/") <= 1 and not path.startswith(".") and not Path(path).suffix  # such as Qwen/Qwen3-8B
        if not set("*?[") & set(path) and not (option.startswith("models.") and is_on_hub):
            raise ValueError(
                f"{option} {path!r} is not in the copy of your folder in which this submitted job runs: Ray leaves out "
                "what .gitignore and .rayignore name; name an absolute path that all nodes share, or a URI"
            )


def _in_copy(options: _Options) -> Iterator[tuple[str, str]]:
    """Yield the options, with their paths, that lie in the copy."""
    if (copy := submitted_copy()) is None:
        return
    for option, paths in options.items():
        for path in [paths] if isinstance(paths, str) else paths or ():
            if "://" not in path and Path(os.path.abspath(os.path.expanduser(path))).is_relative_to(copy):
                yield option, path
