"""Writes what of the chart follows from other files; with ``--check`` only compares.

- deploy/k8s/chart/README.md: the table of values, from the comments in values.yaml
- deploy/k8s/chart/values.schema.json: the policy's schema in it, from proto/policy.schema.json
- deploy/k8s/chart/files/*.json: the parts of Envoy's configuration that a mesh's own Envoy is given, from envoy/envoy.yaml.j2
- deploy/k8s/chart/files/policy-relations.json: what must hold between a policy's keys, with their defaults
- deploy/k8s/chart/files/alerts.yaml and grafana-dashboard.json: copies of those in deploy/observability, because Helm reads
  nothing outside a chart
"""

import json
import re
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from ruamel.yaml import YAML

from extproc.app.addresses import Address, ReplicaAddress
from extproc.app.envoy_config import OBSERVE_FILTER, EnvoySettings, GenerationRoute, render
from extproc.decision.policy import Mode
from extproc.routes.document import RELATIONS
from extproc.routes.schema import LEAVES

ROOT = Path(__file__).parent.parent
CHART = ROOT / "deploy" / "k8s" / "chart"
OBSERVABILITY = ROOT / "deploy" / "observability"
COPIED = ("alerts.yaml", "grafana-dashboard.json")
README = CHART / "README.md"
SCHEMA = CHART / "values.schema.json"
BEGIN = "<!-- values: written by scripts/chart_reference.py from values.yaml -->"
END = "<!-- end of values -->"


def described_values(text: str) -> Iterator[tuple[str, str]]:
    """Dotted key and description of every key below a ``# --`` comment, in their order."""
    sections: list[tuple[int, str]] = []
    description: list[str] = []
    for line in text.splitlines():
        stripped = line.strip()
        if stripped.startswith("# --"):
            description = [stripped.removeprefix("# --").strip()]
        elif stripped.startswith("#"):
            description.append(stripped.removeprefix("#").strip())
        elif found := re.match(r"( *)([A-Za-z]+):", line):
            indent = len(found[1])
            sections = [*(section for section in sections if section[0] < indent), (indent, found[2])]
            if description:
                yield ".".join(name for _, name in sections), " ".join(description)
            description = []
        else:
            description = []


def values_table() -> str:
    """One row for each described key."""
    text = (CHART / "values.yaml").read_text(encoding="utf-8")
    values = YAML(typ="safe").load(text)
    rows = ["| value | default | meaning |", "|---|---|---|"]
    for key, description in described_values(text):
        value = values
        for name in key.split("."):
            value = value[name]
        rows.append(f"| `{key}` | `{json.dumps(value)}` | {description} |")
    return "\n".join(rows)


def fresh_readme(page: str) -> str:
    """``page`` with a fresh table between the marks."""
    before, _, rest = page.partition(BEGIN)
    _, _, after = rest.partition(END)
    return f"{before}{BEGIN}\n{values_table()}\n{END}{after}"


def fresh_schema(text: str) -> str:
    """The values' schema with the policy's own in its place."""
    schema = json.loads(text)
    policy = json.loads((ROOT / "proto" / "policy.schema.json").read_text(encoding="utf-8"))
    schema["$defs"]["policy"] = {key: value for key, value in policy.items() if key not in ("$schema", "$id")}
    return json.dumps(schema, indent=2, ensure_ascii=False) + "\n"


RUN = Path("/run/deltafence")
EXT_PROC = "envoy.filters.http.ext_proc"
ENVOY_PARTS = ("egress-listener", "replicas-cluster", "processor-cluster", "ext-proc-filter", "observe-filter")


def envoy_parts() -> dict[str, dict[str, Any]]:
    """The parts by file name, under names that say whose they are. The chart fills in the endpoints of the two clusters."""
    settings = EnvoySettings(
        listen=(Address.parse("127.0.0.1:8080"),),
        replicas=(ReplicaAddress.parse("http://replica.invalid:8000"),),
        processor_sockets=(RUN / "processor-1.sock",),
        egress_socket=RUN / "egress.sock",
        admin_socket=RUN / "envoy-admin.sock",
        routes=(GenerationRoute(name="any", path="/", default_mode=Mode.OBSERVE),),
        access_log="stdout",
    )
    resources = YAML(typ="safe").load(render(settings))["static_resources"]
    front, egress = resources["listeners"]
    clusters = {cluster["name"]: cluster for cluster in resources["clusters"]}
    filters = front["filter_chains"][0]["filters"][0]["typed_config"]["http_filters"]
    by_name = {entry["name"]: entry for entry in filters}
    parts = {
        "egress-listener": egress,
        "replicas-cluster": clusters["replicas"],
        "processor-cluster": clusters["processor"],
        "ext-proc-filter": by_name[EXT_PROC],
        "observe-filter": by_name[OBSERVE_FILTER],
    }
    text = json.dumps(parts)
    for ours in ("replicas", "processor"):
        for key in ("cluster", "cluster_name", "name"):
            text = text.replace(f'"{key}": "{ours}"', f'"{key}": "deltafence-{ours}"')
    named: dict[str, dict[str, Any]] = json.loads(text)
    named["egress-listener"]["name"] = "deltafence-egress"
    for part in ("replicas-cluster", "processor-cluster"):
        named[part]["load_assignment"]["endpoints"] = []
    return named


def fresh_part(name: str) -> Callable[[str], str]:
    """The whole file of one part."""
    return lambda _text: json.dumps(envoy_parts()[name], indent=2) + "\n"


def fresh_relations(_text: str) -> str:
    """The whole file: each relation's two keys by their sections, and what they are where a policy doesn't say."""
    rows = [
        {
            "lower": relation.lower.split("."),
            "lowerDefault": LEAVES[relation.lower].default,
            "upper": relation.upper.split("."),
            "upperDefault": LEAVES[relation.upper].default,
            "fix": relation.fix,
        }
        for relation in RELATIONS
    ]
    return json.dumps(rows, indent=2) + "\n"


def fresh_copy(name: str) -> Callable[[str], str]:
    """The whole file as deploy/observability has it."""
    return lambda _text: (OBSERVABILITY / name).read_text(encoding="utf-8")


FRESH: dict[Path, Callable[[str], str]] = {
    README: fresh_readme,
    SCHEMA: fresh_schema,
    CHART / "files" / "policy-relations.json": fresh_relations,
    **{CHART / "files" / f"{name}.json": fresh_part(name) for name in ENVOY_PARTS},
    **{CHART / "files" / name: fresh_copy(name) for name in COPIED},
}


def main() -> int:
    """Exit status 1 where ``--check`` finds something stale."""
    stale = 0
    for path, refresh in FRESH.items():
        text = path.read_text(encoding="utf-8") if path.exists() else ""
        fresh = refresh(text)
        if text == fresh:
            continue
        if "--check" in sys.argv[1:]:
            print(f"{path} is stale: run .venv/bin/python scripts/chart_reference.py")
            stale = 1
        else:
            path.write_text(fresh, encoding="utf-8")
    return stale


if __name__ == "__main__":
    sys.exit(main())
