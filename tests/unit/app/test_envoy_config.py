"""Rendering as text and YAML. What Envoy makes of it is in tests/real_envoy."""

import json
import socket
from pathlib import Path
from typing import Any

import hypothesis
import pytest
from hypothesis import given
from hypothesis import strategies as st
from ruamel.yaml import YAML

from extproc.app.addresses import Address, ReplicaAddress
from extproc.app.envoy_config import GENERATION_ROUTES, EnvoySettings, GenerationRoute, ToolEndpoint, destination_of, render
from extproc.contract import headers
from extproc.contract.errors import ENVOY_FORMS, FORMS, EnvoyCode, ErrorCode
from extproc.decision.policy import DEFAULT_POLICY
from extproc.decision.tool_call import ToolRoute


def settings(**fields: Any) -> EnvoySettings:
    return EnvoySettings(
        **{
            "listen": (Address(host="127.0.0.1", port=8080),),
            "replicas": (ReplicaAddress.parse("http://127.0.0.1:8001"),),
            "processor_sockets": (Path("/run/p1.sock"),),
            "egress_socket": Path("/run/egress.sock"),
            "admin_socket": Path("/run/admin.sock"),
            **fields,
        }
    )


def rendered(**fields: Any) -> dict[str, Any]:
    tree = YAML(typ="safe", pure=True).load(render(settings(**fields)))
    assert isinstance(tree, dict)
    return tree


def listener(tree: dict[str, Any], name: str) -> dict[str, Any]:
    (found,) = [listener for listener in tree["static_resources"]["listeners"] if listener["name"] == name]
    return found


def connection_manager(tree: dict[str, Any], name: str) -> dict[str, Any]:
    return listener(tree, name)["filter_chains"][0]["filters"][0]["typed_config"]


def routes(tree: dict[str, Any], name: str = "front") -> list[dict[str, Any]]:
    return connection_manager(tree, name)["route_config"]["virtual_hosts"][0]["routes"]


def cluster(tree: dict[str, Any], name: str) -> dict[str, Any]:
    (found,) = [cluster for cluster in tree["static_resources"]["clusters"] if cluster["name"] == name]
    return found


def endpoints(tree: dict[str, Any], name: str) -> list[dict[str, Any]]:
    return cluster(tree, name)["load_assignment"]["endpoints"][0]["lb_endpoints"]


def test_only_exact_generation_paths_go_to_the_processor() -> None:
    by_name = {route["name"]: route for route in routes(rendered())}
    assert list(by_name) == ["chat", "completions", "responses", "messages", "guard", "ordinary"]
    for route in GENERATION_ROUTES:
        assert by_name[route.name]["match"]["path"] == route.path
        assert by_name[route.name]["direct_response"]["status"] == 503
        assert "typed_per_filter_config" not in by_name[route.name]
    for name in ("guard", "ordinary"):
        assert by_name[name]["typed_per_filter_config"]["envoy.filters.http.ext_proc"]["disabled"] is True


def test_every_forbidden_header_is_stripped_before_routing() -> None:
    (extension,) = connection_manager(rendered(), "front")["early_header_mutation_extensions"]
    matchers = [mutation["remove_on_match"]["key_matcher"] for mutation in extension["typed_config"]["mutations"]]
    assert [matcher["prefix"] for matcher in matchers] == list(headers.STRIPPED_FROM_CLIENTS)


def test_attempts_are_never_repeated_by_envoy() -> None:
    tree = rendered()
    (attempt,) = routes(tree, "egress")
    assert "retry_policy" not in attempt["route"]
    service = connection_manager(tree, "front")["http_filters"][0]["typed_config"]["grpc_service"]
    assert service["retry_policy"]["retry_on"] == "connect-failure,refused-stream"


def test_envoy_cuts_no_stream_before_its_policys_deadline_has_told_the_client() -> None:
    """Envoy's clock starts with the request's head, the session's when the request is whole: at one time Envoy would be first."""
    assert settings().stream_s_max * 1_000 > DEFAULT_POLICY.deadlines.total_ms
    assert settings().idle_s_max * 1_000 > DEFAULT_POLICY.deadlines.first_delta_ms


def test_several_addresses_and_processors_are_all_there() -> None:
    sockets = tuple(Path(f"/run/p{number}.sock") for number in range(3))
    tree = rendered(listen=tuple(map(Address.parse, ("0.0.0.0:1", "[::]:2", "[::1]:3"))), processor_sockets=sockets)
    front = listener(tree, "front")
    addresses = [front["address"], *(extra["address"] for extra in front["additional_addresses"])]
    assert [tuple(address["socket_address"].values()) for address in addresses] == [("0.0.0.0", 1), ("::", 2), ("::1", 3)]
    found = [endpoint["endpoint"]["address"]["pipe"]["path"] for endpoint in endpoints(tree, "processor")]
    assert found == [str(path) for path in sockets]


@pytest.mark.parametrize(
    ("urls", "kind"),
    [
        (["http://10.0.0.1:1", "http://[::1]:1"], "STATIC"),
        (["http://10.0.0.1:1", "http://vllm-0.vllm:8000"], "STRICT_DNS"),
    ],
)
def test_names_need_dns_and_addresses_do_not(urls, kind) -> None:
    assert cluster(rendered(replicas=tuple(map(ReplicaAddress.parse, urls))), "replicas")["type"] == kind


def test_each_https_replica_is_checked_for_its_own_name() -> None:
    urls = ("http://10.0.0.1", "https://gpu.example", "https://gpu.example:8443", "https://10.0.0.2")
    tree = rendered(replicas=tuple(map(ReplicaAddress.parse, urls)), replica_ca=Path("/etc/ca.pem"))
    matches = {
        match["match"]["tls"]: match["transport_socket"]["typed_config"]
        for match in cluster(tree, "replicas")["transport_socket_matches"]
    }
    wanted = [endpoint.get("metadata", {}).get("filter_metadata", {}) for endpoint in endpoints(tree, "replicas")]
    assert [entry.get("envoy.transport_socket_match", {}).get("tls") for entry in wanted] == [
        None,
        "gpu.example",
        "gpu.example",
        "10.0.0.2",
    ]
    assert matches["gpu.example"]["sni"] == "gpu.example"
    assert "sni" not in matches["10.0.0.2"]
    for host, context in matches.items():
        validation = context["common_tls_context"]["validation_context"]
        assert validation["trusted_ca"] == {"filename": "/etc/ca.pem"}
        assert [name["matcher"]["exact"] for name in validation["match_typed_subject_alt_names"]] == [host]


def test_there_is_no_access_log_unless_asked_for() -> None:
    tree = rendered()
    assert [connection_manager(tree, name)["access_log"] for name in ("front", "egress")] == [[], []]


@pytest.mark.parametrize("path", ["/var/log/access.log", "/a b/'c' \"d\" {e}: #f é😀 %g <h>"])
def test_a_log_path_arrives_as_it_is(path) -> None:
    tree = rendered(access_log=path)
    assert [connection_manager(tree, name)["access_log"][0]["typed_config"]["path"] for name in ("front", "egress")] == [
        path,
        path,
    ]


def policy_metadata(route: dict[str, Any]) -> str:
    (entry,) = route["typed_per_filter_config"]["envoy.filters.http.ext_proc"]["overrides"]["grpc_initial_metadata"]
    assert entry["key"] == headers.POLICY
    return entry["value"]


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)


@hypothesis.settings(max_examples=25)  # an example renders the whole template
@given(policy=st.dictionaries(st.text(), JSON, max_size=3))
def test_any_policy_arrives_whole_as_one_ascii_line_without_envoys_commands(policy) -> None:
    tree = rendered(routes=(GenerationRoute(name="chat", path="/v1/chat/completions", policy=policy),))
    value = policy_metadata(routes(tree)[0])
    assert json.loads(value) == policy
    assert value.isascii()
    assert value.isprintable()
    assert "%" not in value


@hypothesis.settings(max_examples=25)
@given(name=st.text(min_size=1), path=st.text().map(lambda text: f"/{text}"))
def test_no_text_breaks_out_of_its_place(name, path) -> None:
    try:
        route = GenerationRoute(name=name, path=path)
    except ValueError:
        assert not (name + path).isprintable()
        return
    first = routes(rendered(routes=(route,)))[0]
    assert (first["name"], first["match"]["path"]) == (name, path)


@pytest.mark.parametrize(
    ("fields", "why"),
    [
        ({"listen": ()}, "listen is empty"),
        ({"replicas": ()}, "replicas is empty"),
        ({"processor_sockets": ()}, "processor_sockets is empty"),
        ({"routes": ()}, "routes is empty"),
        ({"replicas": (ReplicaAddress.parse("http://a"),) * 2}, "replicas names something twice"),
        ({"processor_sockets": (Path("/run/p"),) * 2}, "processor_sockets names something twice"),
        ({"heap_bytes_max": 0}, "heap_bytes_max is not above 0"),
        ({"streams_max": -1}, "streams_max is not above 0"),
        ({"egress_socket": Path("egress.sock")}, "is not absolute"),
        ({"admin_socket": Path("/run/a\nb")}, "printable"),
        ({"admin_socket": Path("/" + "x" * 107)}, "longer than the 107 bytes"),
        ({"processor_sockets": (Path("/" + "é" * 54),)}, "longer than the 107 bytes"),
        ({"access_log": ""}, "access_log '' is empty"),
        ({"access_log": "/tmp/a\x00b"}, "access_log .* not printable"),
        ({"replica_ca": Path("/tmp/a\x00b")}, "replica_ca .* not printable"),
    ],
)
def test_a_value_that_cannot_work_is_refused_by_name(fields, why) -> None:
    with pytest.raises(ValueError, match=why):
        settings(**fields)


@pytest.mark.parametrize(
    ("fields", "why"),
    [
        ({"path": "v1/x"}, "does not start with /"),
        ({"path": "/v1\n/x"}, "not printable"),
        ({"path": "/x", "policy": {"a": "b" * 20_000}}, "longer than 16384 bytes"),
        ({"path": "/x", "policy": {"a": float("nan")}}, "Out of range float"),
    ],
)
def test_a_route_that_cannot_work_is_refused(fields, why) -> None:
    with pytest.raises(ValueError, match=why):
        GenerationRoute(name="r", **fields)


def test_the_longest_socket_path_is_allowed() -> None:
    assert settings(admin_socket=Path("/" + "x" * 106))


@pytest.mark.parametrize(
    ("url", "destination"),
    [("http://127.0.0.1:8001", "127.0.0.1:8001"), ("http://[::1]:8001", "[::1]:8001"), ("https://10.0.0.1", "10.0.0.1:443")],
)
def test_an_address_is_its_own_destination(url, destination) -> None:
    assert destination_of(ReplicaAddress.parse(url)) == destination


def test_a_name_is_resolved_ipv4_first(monkeypatch) -> None:
    def look_up(host: str, port: int, **_: object) -> list[Any]:
        assert (host, port) == ("vllm-0.vllm", 8000)
        return [
            (socket.AF_INET6, socket.SOCK_STREAM, 6, "", ("fd00::1", port, 0, 0)),
            (socket.AF_INET, socket.SOCK_STREAM, 6, "", ("10.0.0.7", port)),
        ]

    monkeypatch.setattr(socket, "getaddrinfo", look_up)
    assert destination_of(ReplicaAddress.parse("http://vllm-0.vllm:8000")) == "10.0.0.7:8000"


def test_a_name_without_an_address_is_an_error() -> None:
    with pytest.raises(OSError, match=r".+"):
        destination_of(ReplicaAddress.parse("http://no-such-host.invalid:1"))


def answers_of(tree: Any) -> list[tuple[str, int | None, int | None]]:
    """Code, status and Retry-After of every answer that Envoy may make; the status where the answer sets one."""
    if isinstance(tree, list):
        return [answer for each in tree for answer in answers_of(each)]
    if not isinstance(tree, dict):
        return []
    body = tree.get("body_format") or tree.get("body_format_override")
    if body is None:
        return [answer for each in tree.values() for answer in answers_of(each)]
    added = [int(each["header"]["value"]) for each in tree.get("headers_to_add", ()) if each["header"]["key"] == "retry-after"]
    return [(body["json_format"]["error"]["code"], tree.get("status"), added[0] if added else None)]


def test_every_answer_that_envoy_makes_has_a_code_of_the_contract_with_its_status_and_its_wait() -> None:
    tool = ToolEndpoint(route=ToolRoute(name="mail"), address=ReplicaAddress.parse("http://127.0.0.1:9000"))
    tree = rendered(tools=(tool,), tools_listen=Address(host="127.0.0.1", port=8081))
    tree["static_resources"]["listeners"] = [each for each in tree["static_resources"]["listeners"] if each["name"] != "egress"]
    answers = answers_of(tree)
    forms = FORMS | ENVOY_FORMS
    assert {code for code, _, _ in answers} == {*EnvoyCode, ErrorCode.OVERLOADED, ErrorCode.NO_HEALTHY_REPLICA}
    for code, status, retry_after_s in answers:
        assert status in (None, forms[code].status), code
        assert retry_after_s == forms[code].retry_after_s, code
