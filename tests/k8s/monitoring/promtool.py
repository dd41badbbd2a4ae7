"""promtool, Prometheus' own checker of rules; `make test-kubernetes` gets it."""

import shutil
import subprocess
import tempfile
from pathlib import Path
from typing import Any

import yaml

from tests.k8s.manifests import K8S, Object


def alert_groups() -> list[Object]:
    """Return the groups of alerts in k8s/, as they are written there."""
    files = sorted((K8S / "base").glob("*/alerts.yaml"))
    return [group for file in files for group in yaml.safe_load(file.read_text())["spec"]["groups"]]


def problems_with_rules(spec: Any) -> list[str]:
    """Return what promtool says against the spec of a PrometheusRule, which is a file of rules to it."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "rules.yaml"
        path.write_text(yaml.safe_dump(spec))
        done = promtool("check", "rules", str(path))
    return [done.stdout + done.stderr] if done.returncode else []


def promtool(*words: str) -> subprocess.CompletedProcess[str]:
    """Run promtool; raise FileNotFoundError that says how to get it."""
    program = shutil.which("promtool")
    if program is None:
        raise FileNotFoundError("there is no promtool on the PATH: run make test-kubernetes, which gets it")
    return subprocess.run([program, *words], capture_output=True, text=True, timeout=60)
