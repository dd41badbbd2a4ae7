"""promtool, over hand-made series, tells when the alerts speak and when they do not (alerts_test.yaml)."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from tests.k8s.monitoring.promtool import alert_groups, promtool

pytestmark = pytest.mark.kubernetes
FAILURES = "ray_serve_health_check_failures_total"
# What Ray's agent makes of a counter of Serve's, whose name has the ending of a counter already.
_AGENT = f"""
from prometheus_client import generate_latest
from ray._private.telemetry.open_telemetry_metric_recorder import OpenTelemetryMetricRecorder
recorder = OpenTelemetryMetricRecorder()
recorder.register_counter_metric("{FAILURES.removeprefix("ray_")}", "x")
recorder.set_metric_value("{FAILURES.removeprefix("ray_")}", {{"application": "dray"}}, 3.0)
print(generate_latest().decode())
"""


def alerts_tested(folder: Path, replaced: tuple[str, str] = ("", "")) -> tuple[int, str]:
    """Run promtool's tests over our alerts, with a text of them replaced; return its exit code and what it printed."""
    groups = alert_groups()
    for rule in [rule for group in groups for rule in group["rules"]]:
        del rule["annotations"]  # promtool would want each of them repeated beside the alert that is expected
    (folder / "rules.yaml").write_text(yaml.safe_dump({"groups": groups}, width=10_000).replace(*replaced))
    shutil.copy(Path(__file__).parent / "alerts_test.yaml", folder)
    done = promtool("test", "rules", str(folder / "alerts_test.yaml"))
    return done.returncode, done.stdout + done.stderr


def test_the_alerts_fire_when_they_should_and_only_then(tmp_path):
    code, printed = alerts_tested(tmp_path)
    assert code == 0, printed


def test_each_alert_fires_in_a_test_and_does_not_fire_in_another():
    tests = yaml.safe_load((Path(__file__).parent / "alerts_test.yaml").read_text())["tests"]
    looks = [look for test in tests for look in test["alert_rule_test"]]
    fires = {look["alertname"] for look in looks if look.get("exp_alerts")}
    is_silent = {look["alertname"] for look in looks if not look.get("exp_alerts")}
    assert fires == is_silent == {rule["alert"] for group in alert_groups() for rule in group["rules"]}


@pytest.mark.parametrize(
    ("text", "other", "alert"),
    [
        ("> 0.05", "> 0.5", "DrayManyRowsFail"),
        ("> 0.05", "> 0.03", "DrayManyRowsFail"),
        ("ray_dray_worker_deaths_total[30m])) > 3", "ray_dray_worker_deaths_total[30m])) > 5", "DrayProcessesDie"),
        ("ray_dray_out_of_memory_total[1h])) > 0", "ray_dray_out_of_memory_total[1h])) > 2", "DrayOutOfMemory"),
        ("< 0.2", "> 0.2", "DrayFewDraftsStand"),
        ("> 0.02", "> 0.05", "DrayEndpointFails"),
        ('route!~"/health.*", ', "", "DrayEndpointFails"),
        ("histogram_quantile(0.95", "histogram_quantile(0.5", "DrayEndpointWaits"),
        ('State="USED"}) == 0', 'State="USED"}) >= 0', "RayGpusIdle"),
        ("Failed|ValidationFailed", "Complete", "RayJobFailed"),
        ("worker_eviction_total offset 1h", "worker_eviction_total offset 1m", "RayOutOfMemory"),
        ("[10m])) > 0", "[1m])) > 0", "RayPodOutOfMemory"),
        ("offset 15m", "offset 1m", "DrayReplicaUnhealthy"),
        ("or increase(", "or 0 * increase(", "DrayReplicaUnhealthy"),
        ("> 2.5", "> 2", "DrayReplicaUnhealthy"),
        ("> 2.5", "> 3.5", "DrayReplicaUnhealthy"),
        ('deployment="Replica"}) > 0', 'deployment="Replica"}) > 1', "DrayEndpointNotReady"),
        ('namespace="dray"}[10m]', 'namespace="dray"}[2m]', "DrayEndpointAbsent"),
        ("unless sum by (run)", "and sum by (run)", "DrayNoProgress"),
    ],
)
def test_an_alert_that_is_wrong_is_noticed(text, other, alert, tmp_path):
    code, printed = alerts_tested(tmp_path, (text, other))
    assert code != 0
    assert alert in printed


def test_the_counter_of_failed_looks_keeps_its_name_on_the_way_to_prometheus():
    done = subprocess.run([sys.executable, "-c", _AGENT], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    names = {line.partition("{")[0] for line in done.stdout.splitlines() if "health_check" in line and line[0] != "#"}
    assert names == {FAILURES}
