"""Objects against the schemas by which their API servers judge them, unknown fields refused.

Kubernetes' own and EnvoyFilter's come out of packages (scripts/chart_tools.py). For Envoy Gateway's and the Prometheus operator's
schemas/ holds, written by hand after their API references, the part that the chart uses.
"""

import json
from functools import cache
from pathlib import Path
from typing import Any

from jsonschema import Draft202012Validator
from referencing import Registry, Resource
from referencing.jsonschema import DRAFT202012

from tests.chart.rendering import TOOLS, Object

KUBERNETES = TOOLS / "kubernetes"
BY_HAND = Path(__file__).parent / "schemas"
DEFINITIONS = "/api/_definitions.json"


def problems_of(found: Object) -> list[str]:
    """What an API server would refuse."""
    validator = Draft202012Validator(schema_of(found["apiVersion"], found["kind"]), registry=registry())
    return [f"{found['kind']} {error.json_path}: {error.message}" for error in validator.iter_errors(found)]


@cache
def registry() -> "Registry[Any]":
    definitions = json.loads((KUBERNETES / "_definitions.json").read_text())
    return Registry().with_resource(DEFINITIONS, Resource(contents=definitions, specification=DRAFT202012))


@cache
def schema_of(api_version: str, kind: str) -> dict[str, Any]:
    by_hand = BY_HAND / f"{kind}.json"
    if by_hand.exists():
        return dict(json.loads(by_hand.read_text()))
    if kind == "EnvoyFilter":
        return dict(strict(json.loads((TOOLS / "EnvoyFilter.json").read_text())))
    group, _, version = api_version.rpartition("/")
    parts = [kind.lower(), *([group.split(".")[0]] if group else []), version]
    return dict(json.loads((KUBERNETES / f"{'-'.join(parts)}.json").read_text()))


def strict(schema: Any) -> Any:
    """A structural schema as the API server's strict field validation reads it. ObjectMeta is left to Kubernetes."""
    if isinstance(schema, list):
        return [strict(child) for child in schema]
    if not isinstance(schema, dict):
        return schema
    if "$ref" in schema:
        return True
    closed = {key: strict(child) for key, child in schema.items() if key not in ("nullable", "properties")}
    if "properties" in schema:
        closed["properties"] = {name: strict(child) for name, child in schema["properties"].items()}
        if schema.get("type") == "object" and schema["properties"]:  # an empty one stands for a free form
            closed.setdefault("additionalProperties", False)
    return closed
