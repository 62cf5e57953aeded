"""The chart as helm renders it: objects by kind, refusals as text."""

import json
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ruamel.yaml import YAML

ROOT = Path(__file__).parents[2]
CHART = ROOT / "deploy" / "k8s" / "chart"
TOOLS = ROOT / "out" / "chart-tools"
NAMESPACE = "llm"
RELEASE = "gateway"

API_VERSIONS = (
    "gateway.envoyproxy.io/v1alpha1/EnvoyProxy",
    "gateway.envoyproxy.io/v1alpha1/EnvoyExtensionPolicy",
    "gateway.envoyproxy.io/v1alpha1/Backend",
    "networking.istio.io/v1alpha3/EnvoyFilter",
    "monitoring.coreos.com/v1/PodMonitor",
    "monitoring.coreos.com/v1/PrometheusRule",
)
HA = CHART / "values-ha.yaml"
ENVOY_GATEWAY = {"mode": "envoyGateway", "envoyGateway": {"routes": [{"name": "chat"}, {"name": "rpc", "kind": "GRPCRoute"}]}}
ISTIO = {"mode": "istio", "istio": {"routes": ["chat"]}}
EVERYTHING = {
    "podMonitor": {"enabled": True, "labels": {"release": "prometheus"}},
    "monitoring": {
        "rules": {"enabled": True, "labels": {"release": "prometheus"}},
        "dashboard": {"enabled": True, "annotations": {"grafana_folder": "LLM"}},
    },
    "journal": {
        "store": "postgres",
        "postgres": {"existingSecret": "journal"},
        "keySecret": {"existingSecret": "keys"},
    },
    "podDisruptionBudget": {"enabled": True},
    "guard": {"existingSecret": "guard"},
    "imagePullSecrets": [{"name": "pull"}],
    "networkPolicy": {"clients": [{"namespaceSelector": {}}], "operators": [{"podSelector": {}}]},
    "processor": {
        "count": 2,
        "extraArgs": ["--decision-log=/run/deltafence/decisions"],
        "env": [{"name": "OTEL_EXPORTER_OTLP_ENDPOINT", "value": "http://collector:4318"}],
        "transport": "http2",
        "egressProtocol": "h2",
        "logFormat": "json",
        "callerHeader": "x-caller",
        "keyTtlHours": 48,
    },
    "health": {"hungAfterSeconds": 90, "intervalSeconds": 10},
    "policy": {"mode": "off", "tools": "ledger", "lease": {"ttl_ms": 20000}},
    "nodeSelector": {"a": "b"},
    "tolerations": [{"key": "a", "operator": "Exists"}],
    "affinity": {"nodeAffinity": {}},
    "priorityClassName": "high",
    "podLabels": {"team": "llm"},
    "podAnnotations": {"note": "1"},
    "topologySpreadConstraints": [
        {"maxSkew": 2, "topologyKey": "kubernetes.io/hostname", "whenUnsatisfiable": "DoNotSchedule", "labelSelector": {}}
    ],
    "service": {"type": "LoadBalancer", "annotations": {"a": "b"}},
    "serviceAccount": {"annotations": {"a": "b"}},
}

TOOLS_OF_STANDALONE = {
    "routes": [{"name": "chat", "path": "/v1/chat/completions", "policy": {"mode": "observe"}}],
    "tools": {
        "routes": [
            {
                "name": "mail",
                "url": "http://mail.tools.svc:9000",
                "require_key": True,
                "wait_ms": 5000,
                "status_path": "/calls/{key}",
            },
            {"name": "search", "url": "https://search.example.com"},
        ],
        "port": 9000,
        "callers": [{"podSelector": {"matchLabels": {"app": "agent"}}}],
    },
    "upstream": {
        "urls": ["https://10.0.0.5:8443", "http://[fd00::1]:8000"],
        "facts": {"https://10.0.0.5:8443": {"revision": "1", "tensor-parallel-size": 2}},
        "ca": {"existingSecret": "model-ca"},
    },
}

Object = dict[str, Any]


class RefusedError(Exception):
    """Helm refused; the message is what it wrote."""


@dataclass(frozen=True)
class Rendered:
    """One rendering: its text and its objects."""

    text: str
    objects: tuple[Object, ...]

    def one(self, kind: str, name_part: str = "") -> Object:
        """The only object of a kind whose name holds ``name_part``."""
        (found,) = [found for found in self.objects if found["kind"] == kind and name_part in found["metadata"]["name"]]
        return found

    def kinds(self) -> list[str]:
        return sorted(found["kind"] for found in self.objects)


def helm(*arguments: str, stdin: str = "") -> str:
    """What helm prints. Raises RefusedError."""
    result = subprocess.run([TOOLS / "helm", *arguments], input=stdin, capture_output=True, text=True, check=False)
    if result.returncode != 0:
        raise RefusedError(result.stderr)
    return result.stdout


def render(
    values: Mapping[str, Any] | None = None,
    *files: Path,
    api_versions: tuple[str, ...] = API_VERSIONS,
    kubernetes: str = "1.35.0",
    release: str = RELEASE,
    chart: Path = CHART,
) -> Rendered:
    """A chart with values laid over those of ``files``. Raises RefusedError."""
    text = helm(
        "template",
        release,
        str(chart),
        *("--namespace", NAMESPACE, "--kube-version", kubernetes),
        *(word for version in api_versions for word in ("--api-versions", version)),
        *(word for file in files for word in ("--values", str(file))),
        *("--values", "-"),
        stdin=json.dumps(dict(values or {})),
    )
    documents = YAML(typ="safe").load_all(text)
    return Rendered(text=text, objects=tuple(document for document in documents if document is not None))


def pod_specs(rendered: Rendered) -> list[Object]:
    """Every pod's spec among the objects, Envoy Gateway's as far as the chart says it."""
    specs = []
    for found in rendered.objects:
        match found["kind"]:
            case "Deployment":
                specs.append(found["spec"]["template"]["spec"])
            case "Pod":
                specs.append(found["spec"])
            case "EnvoyProxy":
                deployment = found["spec"]["provider"]["kubernetes"]["envoyDeployment"]
                specs.append({**deployment["pod"], **deployment["patch"]["value"]["spec"]["template"]["spec"]})
    return specs


def containers(spec: Object) -> list[Object]:
    return [*spec.get("initContainers", []), *spec["containers"]]
