"""Write deploy/observability/grafana-dashboard.json from one table of panels; with --check, fail where the file is another.

A dashboard edited by hand in Grafana can't be reviewed: its JSON is thousands of lines of positions. Here a panel is a line.
"""

import json
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

FILE: Final = Path(__file__).parents[1] / "deploy" / "observability" / "grafana-dashboard.json"
WIDTH: Final = 24
HEIGHT: Final = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class Panel:
    """One picture: a question as its title, and the queries that answer it, each with its legend."""

    title: str
    queries: Sequence[tuple[str, str]]
    unit: str = "short"
    kind: str = "timeseries"
    columns: int = 8
    stacked: bool = False
    note: str = ""


def rate(metric: str, by: str, labels: str = "") -> str:
    """How often per second, by some labels."""
    selector = f'{metric}{{instance=~"$instance"{", " + labels if labels else ""}}}'
    return f"sum by ({by}) (rate({selector}[$__rate_interval]))"


def quantile(share: float, metric: str, by: str) -> str:
    """A quantile of a histogram, by some labels."""
    return f"histogram_quantile({share}, {rate(metric + '_bucket', by + ', le')})"


ENFORCED: Final = 'mode="enforce"'
FIRST_TOKEN: Final = "gen_ai_server_time_to_first_token_seconds"
DURATION: Final = "gen_ai_server_request_duration_seconds"
FENCE: Final = "deltafence_fence_duration_seconds"

ROWS: Final[dict[str, Sequence[Panel]]] = {
    "What clients get": (
        Panel(
            title="How do requests end?",
            queries=[(rate("deltafence_requests_total", "outcome", ENFORCED), "{{outcome}}")],
            unit="reqps",
            stacked=True,
        ),
        Panel(
            title="Which share breaks off after the first delta?",
            queries=[
                (
                    rate("deltafence_requests_total", "model", ENFORCED + ', outcome="interrupted"')
                    + " / "
                    + rate("deltafence_requests_total", "model", ENFORCED),
                    "{{model}}",
                )
            ],
            unit="percentunit",
        ),
        Panel(
            title="Which errors do they see?",
            queries=[
                (rate("deltafence_requests_total", "code", ENFORCED + ', code!="none"'), "{{code}}"),
                (rate("deltafence_requests_turned_away_total", "code"), "{{code}} (not admitted)"),
            ],
            unit="reqps",
            stacked=True,
        ),
        Panel(
            title="How long do they wait for the first token?",
            queries=[
                (quantile(0.5, FIRST_TOKEN, "gen_ai_request_model"), "p50 {{gen_ai_request_model}}"),
                (quantile(0.95, FIRST_TOKEN, "gen_ai_request_model"), "p95 {{gen_ai_request_model}}"),
            ],
            unit="s",
        ),
        Panel(
            title="How long do answers take?",
            queries=[(quantile(0.95, DURATION, "gen_ai_request_model"), "p95 {{gen_ai_request_model}}")],
            unit="s",
        ),
        Panel(
            title="How many tokens are delivered, and how many of them in answers that broke off?",
            queries=[(rate("deltafence_delivered_tokens_total", "outcome"), "{{outcome}}")],
            stacked=True,
        ),
    ),
    "What deltafence does": (
        Panel(
            title="Where are running requests?",
            queries=[('sum by (phase) (deltafence_requests_active{instance=~"$instance"})', "{{phase}}")],
            stacked=True,
        ),
        Panel(
            title="Why do attempts fail?",
            queries=[(rate("deltafence_attempt_failures_total", "cause, boundary"), "{{cause}} {{boundary}} the first delta")],
            unit="ops",
            stacked=True,
        ),
        Panel(
            title="What happens to repeats?",
            queries=[(rate("deltafence_repeats_total", "decision, gate"), "{{decision}}: {{gate}}")],
            unit="ops",
            stacked=True,
            note="`all` is a repeat that every gate let pass; every other line is the first gate that refused.",
        ),
        Panel(
            title="How is it proved that an attempt is over?",
            queries=[(rate("deltafence_fences_total", "proof"), "{{proof}}")],
            unit="ops",
            stacked=True,
        ),
        Panel(
            title="How long does that take?",
            queries=[(quantile(0.5, FENCE, "proof"), "p50 {{proof}}"), (quantile(0.95, FENCE, "proof"), "p95 {{proof}}")],
            unit="s",
        ),
        Panel(
            title="How many repeats does the budget hold?",
            queries=[('min by (model) (deltafence_retry_budget_repeats{instance=~"$instance"})', "{{model}}")],
        ),
        Panel(
            title="Attempts, first and repeated",
            queries=[(rate("deltafence_attempts_total", "repeat"), "repeat: {{repeat}}")],
            unit="ops",
            stacked=True,
        ),
        Panel(
            title="Do leases get renewed?",
            queries=[(rate("deltafence_lease_renewals_total", "result"), "{{result}}")],
            unit="ops",
            stacked=True,
        ),
        Panel(
            title="Routes that are only observed: what would enforce have done?",
            queries=[(rate("deltafence_observed_requests_total", "outcome, would"), "{{outcome}}, would: {{would}}")],
            unit="reqps",
            stacked=True,
        ),
    ),
    "Replicas and records": (
        Panel(
            title="What does health say of each replica?",
            queries=[
                ('max by (replica, verdict) (deltafence_replica_verdict{instance=~"$instance"}) == 1', "{{replica}} {{verdict}}")
            ],
            kind="state-timeline",
            columns=12,
        ),
        Panel(
            title="How often do verdicts change?",
            queries=[(rate("deltafence_replica_verdict_changes_total", "verdict"), "{{verdict}}")],
            unit="ops",
            columns=12,
        ),
        Panel(
            title="Does the journal keep up?",
            queries=[
                ('max by (instance) (deltafence_journal_lag_seconds{instance=~"$instance"})', "lag {{instance}}"),
                ('min by (instance) (deltafence_journal_available{instance=~"$instance"})', "available {{instance}}"),
            ],
            unit="s",
        ),
        Panel(
            title="Events that wait, and events that were lost",
            queries=[
                ('max by (instance) (deltafence_journal_waiting{instance=~"$instance"})', "waiting {{instance}}"),
                (rate("deltafence_journal_unrecorded_total", "instance"), "unrecorded/s {{instance}}"),
            ],
        ),
        Panel(
            title="Are policy sources refused?",
            queries=[
                ('max by (route) (deltafence_policy_refused_sources{instance=~"$instance"})', "{{route}}"),
                (rate("deltafence_policy_errors_total", "source"), "new/s: {{source}}"),
            ],
        ),
    ),
}


def dashboard() -> dict[str, Any]:
    """The whole document, as Grafana imports it."""
    panels: list[dict[str, Any]] = []
    y = 0
    for name, row in ROWS.items():
        panels.append(
            {"id": len(panels) + 1, "type": "row", "title": name, "collapsed": False, "gridPos": _place(0, y, WIDTH, 1)}
        )
        y += 1
        x = 0
        for panel in row:
            if x + panel.columns > WIDTH:
                x, y = 0, y + HEIGHT
            panels.append(_panel(panel, len(panels) + 1, _place(x, y, panel.columns, HEIGHT)))
            x += panel.columns
        y += HEIGHT
    return {
        "uid": "deltafence",
        "title": "deltafence",
        "description": "Streamed answers of LLM replicas: how they end, what is repeated, and why not.",
        "tags": ["deltafence", "llm", "envoy"],
        "schemaVersion": 39,
        "editable": True,
        "graphTooltip": 1,
        "refresh": "30s",
        "time": {"from": "now-1h", "to": "now"},
        "templating": {"list": [_source_variable(), _instance_variable()]},
        "annotations": {"list": []},
        "panels": panels,
    }


def _panel(panel: Panel, number: int, place: dict[str, int]) -> dict[str, Any]:
    custom = {"fillOpacity": 20, "stacking": {"mode": "normal" if panel.stacked else "none"}, "showPoints": "never"}
    return {
        "id": number,
        "type": panel.kind,
        "title": panel.title,
        "description": panel.note,
        "datasource": {"type": "prometheus", "uid": "${source}"},
        "gridPos": place,
        "fieldConfig": {
            "defaults": {"unit": panel.unit, "min": 0, "custom": custom if panel.kind == "timeseries" else {}},
            "overrides": [],
        },
        "options": {"legend": {"displayMode": "list", "placement": "bottom"}, "tooltip": {"mode": "multi"}},
        "targets": [
            {"refId": chr(ord("A") + place), "expr": query, "legendFormat": legend}
            for place, (query, legend) in enumerate(panel.queries)
        ],
    }


def _place(x: int, y: int, width: int, height: int) -> dict[str, int]:
    return {"x": x, "y": y, "w": width, "h": height}


def _source_variable() -> dict[str, Any]:
    return {"name": "source", "label": "Prometheus", "type": "datasource", "query": "prometheus"}


def _instance_variable() -> dict[str, Any]:
    return {
        "name": "instance",
        "label": "Processor",
        "type": "query",
        "datasource": {"type": "prometheus", "uid": "${source}"},
        "query": "label_values(deltafence_journal_available, instance)",
        "refresh": 2,
        "multi": True,
        "includeAll": True,
        "allValue": ".*",
        "current": {"text": "All", "value": "$__all"},
    }


def main() -> None:
    text = json.dumps(dashboard(), indent=1, ensure_ascii=False) + "\n"
    if "--check" not in sys.argv[1:]:
        FILE.write_text(text, encoding="utf-8")
    elif FILE.read_text(encoding="utf-8") != text:
        sys.exit(f"{FILE} is not what scripts/dashboard.py writes; run it")


if __name__ == "__main__":
    main()
