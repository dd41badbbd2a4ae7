"""Metrics, read as Prometheus reads them: from the port of each node, in its text format."""

from collections import Counter
from urllib.request import urlopen

import ray
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.samples import Sample

OWN = {"outcome", "stage", "position", "le"}  # our tags, less "run", and a histogram's


def scrape(run: str) -> list[Sample]:
    """Return the samples of one run that the cluster's nodes show."""
    samples = []
    for node in ray.nodes():
        with urlopen(f"http://{node['NodeManagerAddress']}:{node['MetricsExportPort']}/metrics", timeout=30) as page:
            families = text_string_to_metric_families(page.read().decode())
            samples += [sample for family in families for sample in family.samples if sample.labels.get("run") == run]
    return [sample for sample in samples if sample.name.startswith("ray_dray_")]


def sums(samples: list[Sample]) -> Counter[tuple[str, ...]]:
    """Return the sums of samples by name and our own tags, over processes and nodes."""
    totals: Counter[tuple[str, ...]] = Counter()
    for sample in samples:
        totals[sample.name, *(value for tag, value in sorted(sample.labels.items()) if tag in OWN)] += sample.value
    return totals
