"""What Envoy Gateway and Istio make of the chart's objects, as far as Envoy sees it: a mesh's configuration with our parts in it.

The mesh's part is the least that such an Envoy has: one listener, and one route with a backend and retries that multiply. Ours is
put in by each mesh's rules: JSON patches of the bootstrap and the translation of an EnvoyExtensionPolicy (Envoy Gateway's
internal/xds/translator/extproc.go), or EnvoyFilter's operations.
"""

import copy
from typing import Any

from tests.chart.rendering import Object, Rendered

ROUTER = "envoy.filters.http.router"
CONNECTION_MANAGER = "envoy.filters.network.http_connection_manager"
TYPE = "type.googleapis.com/envoy.extensions"
BACKEND = "mesh-backend"


ORIGINS = {
    "envoy-gateway": lambda name: {"resources": [{"kind": "HTTPRoute", "namespace": "llm", "name": name}]},
    "istio": lambda name: {"config": f"/apis/gateway.networking.k8s.io/v1/namespaces/llm/http-route/{name}"},
}
"""By metadata namespace: how each mesh says which object a route came from."""


def mesh_config(mesh: str, port: int, replicas: list[str]) -> Object:
    """An Envoy of a mesh before we come: everything is routed to the servers, and 503 is retried.

    The route is ``chat``'s; what has ``x-route: other`` goes by another object's.
    """
    endpoints = [
        {"endpoint": {"address": {"socket_address": {"address": host, "port_value": int(number)}}}}
        for host, _, number in (replica.rpartition(":") for replica in replicas)
    ]
    route = {
        "name": "chat",
        "match": {"prefix": "/"},
        "metadata": {"filter_metadata": {mesh: ORIGINS[mesh]("chat")}},
        "route": {"cluster": BACKEND, "timeout": "0s", "retry_policy": {"retry_on": "5xx,reset", "num_retries": 2}},
    }
    other = {
        **copy.deepcopy(route),
        "name": "other",
        "match": {"prefix": "/", "headers": [{"name": "x-route", "string_match": {"exact": "other"}}]},
        "metadata": {"filter_metadata": {mesh: ORIGINS[mesh]("other")}},
    }
    manager = {
        "@type": f"{TYPE}.filters.network.http_connection_manager.v3.HttpConnectionManager",
        "stat_prefix": "mesh",
        "http_filters": [{"name": ROUTER, "typed_config": {"@type": f"{TYPE}.filters.http.router.v3.Router"}}],
        "route_config": {"name": "mesh", "virtual_hosts": [{"name": "mesh", "domains": ["*"], "routes": [other, route]}]},
    }
    listener = {
        "name": "mesh",
        "address": {"socket_address": {"address": "127.0.0.1", "port_value": port}},
        "filter_chains": [{"filters": [{"name": CONNECTION_MANAGER, "typed_config": manager}]}],
    }
    cluster = {
        "name": BACKEND,
        "type": "STATIC",
        "load_assignment": {"cluster_name": BACKEND, "endpoints": [{"lb_endpoints": endpoints}]},
    }
    return {"static_resources": {"listeners": [listener], "clusters": [cluster]}}


def manager_of(config: Object) -> dict[str, Any]:
    return dict.__getitem__(config["static_resources"]["listeners"][0]["filter_chains"][0]["filters"][0], "typed_config")


def routes_of(config: Object) -> list[dict[str, Any]]:
    return list(manager_of(config)["route_config"]["virtual_hosts"][0]["routes"])


def with_envoy_gateway(config: Object, rendered: Rendered) -> Object:
    """The configuration that Envoy Gateway would give its proxy."""
    config = copy.deepcopy(config)
    for patch in rendered.one("EnvoyProxy")["spec"]["bootstrap"]["jsonPatches"]:
        assert (patch["op"], patch["path"].rpartition("/")[2]) == ("add", "-")
        _, resources, kind, _ = patch["path"].split("/")
        config[resources][kind].append(patch["value"])
    extension = rendered.one("EnvoyExtensionPolicy")["spec"]["extProc"][0]
    assert extension["processingMode"] == {
        "request": {"body": "FullDuplexStreamed", "attributes": ["xds.route_name", "xds.route_metadata"]}
    }
    name = "envoy.filters.http.ext_proc/envoyextensionpolicy/llm/gateway-deltafence/extproc/0"
    ext_proc = {
        "@type": f"{TYPE}.filters.http.ext_proc.v3.ExternalProcessor",
        "grpc_service": {"envoy_grpc": {"cluster_name": name}, "timeout": "10s"},
        "processing_mode": {
            "request_header_mode": "SEND",
            "request_body_mode": "FULL_DUPLEX_STREAMED",
            "request_trailer_mode": "SEND",
            "response_header_mode": "SKIP",
            "response_body_mode": "NONE",
            "response_trailer_mode": "SKIP",
        },
        "request_attributes": extension["processingMode"]["request"]["attributes"],
        "message_timeout": {"1h": "3600s"}[extension["messageTimeout"]],
        "failure_mode_allow": extension["failOpen"],
        "metadata_options": {"receiving_namespaces": {"untyped": extension["metadata"]["writableNamespaces"]}},
    }
    pipes = [{"endpoint": {"address": {"pipe": entry["unix"]}}} for entry in rendered.one("Backend")["spec"]["endpoints"]]
    config["static_resources"]["clusters"].append(
        {
            "name": name,
            "type": "STATIC",
            "typed_extension_protocol_options": {
                "envoy.extensions.upstreams.http.v3.HttpProtocolOptions": {
                    "@type": f"{TYPE}.upstreams.http.v3.HttpProtocolOptions",
                    "explicit_http_config": {"http2_protocol_options": {}},
                }
            },
            "load_assignment": {"cluster_name": name, "endpoints": [{"lb_endpoints": pipes}]},
        }
    )
    manager_of(config)["http_filters"].insert(0, {"name": name, "disabled": True, "typed_config": ext_proc})
    enabled = {"@type": "type.googleapis.com/envoy.config.route.v3.FilterConfig", "config": {}}
    for route in routes_of(config):
        route["typed_per_filter_config"] = {name: enabled}
    return config


def with_istio(config: Object, rendered: Rendered) -> Object:
    """The configuration that istiod would give a gateway which an EnvoyFilter selects."""
    config = copy.deepcopy(config)
    resources = config["static_resources"]
    for entry in rendered.one("EnvoyFilter")["spec"]["configPatches"]:
        value = copy.deepcopy(entry["patch"]["value"])
        match entry["applyTo"], entry["patch"]["operation"]:
            case "CLUSTER", "ADD":
                resources["clusters"].append(value)
            case "LISTENER", "ADD":
                resources["listeners"].append(value)
            case "NETWORK_FILTER", "MERGE":
                merge(manager_of(config), value["typed_config"])
            case "HTTP_FILTER", "INSERT_BEFORE":
                manager_of(config)["http_filters"].insert(0, value)
            case "HTTP_ROUTE", "MERGE":
                wanted = entry["match"]["routeConfiguration"]["vhost"]["route"]
                for route in routes_of(config):
                    if wanted.get("name", route["name"]) == route["name"]:
                        merge(route, value)
            case other:
                raise AssertionError(f"no rule for {other}")
    return config


def merge(target: dict[str, Any], source: dict[str, Any]) -> None:
    for key, value in source.items():
        if isinstance(value, dict) and isinstance(target.get(key), dict):
            merge(target[key], value)
        else:
            target[key] = value
