"""What the chart hands to Prometheus and Grafana is what deploy/observability has, and what it names exists in a processor.

tests/telemetry holds every metric of those files against a scrape.
"""

import json
import subprocess
import sys

from ruamel.yaml import YAML

from extproc.telemetry.instruments import INSTRUMENTS, Kind
from tests.chart.rendering import CHART, ROOT, render

OBSERVABILITY = ROOT / "deploy" / "observability"
README = ROOT / "deploy" / "k8s" / "README.md"


def test_what_the_chart_copies_and_derives_is_fresh() -> None:
    subprocess.run([sys.executable, ROOT / "scripts" / "chart_reference.py", "--check"], cwd=ROOT, check=True)


def test_nothing_of_the_operator_or_grafana_is_rendered_unasked() -> None:
    kinds = render(api_versions=()).kinds()
    assert not set(kinds) & {"PodMonitor", "PrometheusRule"}
    assert kinds.count("ConfigMap") == 1


def test_the_rules_are_those_of_deploy_observability_to_the_letter() -> None:
    """Their `{{ $labels }}` are Prometheus', not Helm's."""
    rule = render({"monitoring": {"rules": {"enabled": True, "labels": {"release": "prometheus"}}}}).one("PrometheusRule")
    assert rule["spec"] == YAML(typ="safe").load(OBSERVABILITY / "alerts.yaml")
    assert rule["metadata"]["labels"]["release"] == "prometheus"


def test_the_dashboard_is_that_of_deploy_observability_under_the_sidecars_label() -> None:
    found = render({"monitoring": {"dashboard": {"enabled": True}}}).one("ConfigMap", "-dashboard")
    (document,) = found["data"].values()
    assert json.loads(document) == json.loads((OBSERVABILITY / "grafana-dashboard.json").read_text())
    assert found["metadata"]["labels"]["grafana_dashboard"] == "1"


def test_the_autoscalers_metric_is_one_that_rises_and_falls_in_a_scrape() -> None:
    metric = YAML(typ="safe").load(CHART / "values.yaml")["autoscaling"]["metric"]
    (instrument,) = [instrument for instrument in INSTRUMENTS if instrument.prometheus_name == metric]
    assert instrument.kind is Kind.UP_DOWN_COUNTER
    assert f"'{metric}{{" in README.read_text(), "the adapter's rule in the README serves another metric"
