"""Every field of a command's configuration, from the same declarations as `--help`."""

from __future__ import annotations

from typing import Literal

from jobs.config.fields import Field, all_fields
from jobs.config.run import RetryConfig, RunConfig
from jobs.config.serve import ServeConfig

_CONFIGURATIONS = {"generate": RunConfig, "retry": RetryConfig, "serve": ServeConfig}


def fields(command: Literal["generate", "retry", "serve"]) -> list[Field]:
    """Return the fields of a command in the order of `--help`, each with dotted name, type, default, unit and help."""
    return list(all_fields(_CONFIGURATIONS[command]))
