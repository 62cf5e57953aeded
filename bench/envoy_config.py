"""Envoy configurations of the contenders that are not deltafence: one listener, one upstream, as little as there can be."""

from typing import Any, Final

Config = dict[str, Any]

_TYPE: Final = "type.googleapis.com/envoy.extensions"
_UNLIMITED: Final = {
    "thresholds": [{"max_connections": 10_000, "max_pending_requests": 10_000, "max_requests": 10_000, "max_retries": 10_000}]
}
"""The defaults of 1,024 would queue in silence (FACTS C4)."""


def alone(port: int, upstream_port: int) -> Config:
    """Envoy as a plain reverse proxy."""
    return _config(port, upstream_port, processor_filters=[], processor_clusters=[])


def with_echo(port: int, upstream_port: int, socket: str) -> Config:
    """Envoy with response headers and bodies through an external processor on ``socket``."""
    processor_filter = {
        "name": "echo",
        "typed_config": {
            "@type": f"{_TYPE}.filters.http.ext_proc.v3.ExternalProcessor",
            "grpc_service": {"envoy_grpc": {"cluster_name": "echo"}},
            "processing_mode": {
                "request_header_mode": "SKIP",
                "response_header_mode": "SEND",
                "response_body_mode": "FULL_DUPLEX_STREAMED",
                "response_trailer_mode": "SEND",
            },
            "message_timeout": "30s",
        },
    }
    cluster = _cluster("echo", {"pipe": {"path": socket}}, protocol="http2_protocol_options")
    return _config(port, upstream_port, processor_filters=[processor_filter], processor_clusters=[cluster])


def _config(port: int, upstream_port: int, processor_filters: list[Config], processor_clusters: list[Config]) -> Config:
    router = {"name": "router", "typed_config": {"@type": f"{_TYPE}.filters.http.router.v3.Router"}}
    route = {"match": {"prefix": "/"}, "route": {"cluster": "upstream", "timeout": "0s"}}
    connection_manager = {
        "@type": f"{_TYPE}.filters.network.http_connection_manager.v3.HttpConnectionManager",
        "stat_prefix": "bench",
        "http_filters": [*processor_filters, router],
        "route_config": {"virtual_hosts": [{"name": "all", "domains": ["*"], "routes": [route]}]},
    }
    listener = {
        "address": _socket_address(port),
        "filter_chains": [{"filters": [{"name": "http", "typed_config": connection_manager}]}],
    }
    upstream = _cluster("upstream", _socket_address(upstream_port), protocol="http_protocol_options")
    return {"static_resources": {"listeners": [listener], "clusters": [upstream, *processor_clusters]}}


def _cluster(name: str, address: Config, protocol: str) -> Config:
    options = f"{_TYPE}.upstreams.http.v3.HttpProtocolOptions"
    return {
        "name": name,
        "type": "STATIC",
        "circuit_breakers": _UNLIMITED,
        "typed_extension_protocol_options": {
            options.rpartition("/")[2]: {"@type": options, "explicit_http_config": {protocol: {}}}
        },
        "load_assignment": {
            "cluster_name": name,
            "endpoints": [{"lb_endpoints": [{"endpoint": {"address": address}}]}],
        },
    }


def _socket_address(port: int) -> Config:
    return {"socket_address": {"address": "127.0.0.1", "port_value": port}}
