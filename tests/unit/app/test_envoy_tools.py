"""Tools in Envoy's configuration: what fails closed, and what reaches them."""

import pytest

from extproc.app.addresses import Address, ReplicaAddress
from extproc.app.envoy_config import ToolEndpoint
from extproc.contract import headers
from extproc.decision.tool_call import ToolRoute
from extproc.routes.tool_route import read_tool_route
from tests.unit.app.test_envoy_config import cluster, connection_manager, rendered, routes, settings

LISTEN = Address(host="127.0.0.1", port=9900)


def tool(name: str = "mail", url: str = "http://10.0.0.9:9000", **route: object) -> ToolEndpoint:
    return ToolEndpoint(route=ToolRoute(name=name, **route), address=ReplicaAddress.parse(url))  # type: ignore[arg-type]


def test_without_tools_there_is_no_listener_for_them():
    tree = rendered(tools_listen=LISTEN)
    assert [listener["name"] for listener in tree["static_resources"]["listeners"]] == ["front", "egress"]


def test_tools_without_a_listener_and_two_of_one_name_are_refused():
    with pytest.raises(ValueError, match="tools_listen"):
        settings(tools=(tool(),))
    with pytest.raises(ValueError, match="twice"):
        settings(tools=(tool(), tool(url="http://10.0.0.10:9000")), tools_listen=LISTEN)


def test_a_call_has_no_way_to_its_tool_but_through_the_processor():
    tree = rendered(tools=(tool(), tool("crm")), tools_listen=LISTEN)
    by_name = {route["name"]: route for route in routes(tree, "tools")}
    assert list(by_name) == ["tool-mail", "tool-crm", "no-tool"]
    assert all(route["direct_response"]["status"] in (503, 404) and "route" not in route for route in by_name.values())
    ext_proc, router = connection_manager(tree, "tools")["http_filters"]
    assert (ext_proc["name"], router["name"]) == ("envoy.filters.http.ext_proc", "envoy.filters.http.router")
    assert ext_proc["typed_config"]["failure_mode_allow"] is False


def test_the_processor_is_told_what_the_operator_said_of_the_route():
    endpoint = tool(require_key=True, status_path="/status?key={key}&x=%20")
    tree = rendered(tools=(endpoint,), tools_listen=LISTEN)
    override = routes(tree, "tools")[0]["typed_per_filter_config"]["envoy.filters.http.ext_proc"]["overrides"]
    (entry,) = override["grpc_initial_metadata"]
    assert entry["key"] == headers.TOOL
    assert read_tool_route(entry["value"]) == endpoint.route


def test_the_processors_calls_reach_the_tool_without_the_gateways_prefix_on_a_connection_of_their_own():
    tree = rendered(tools=(tool(),), tools_listen=LISTEN)
    first, *_, attempt = routes(tree, "egress")
    assert first["match"]["headers"] == [{"name": headers.TOOL, "string_match": {"exact": "mail"}}]
    assert first["route"]["regex_rewrite"] == {"pattern": {"regex": "^/tools/mail/?"}, "substitution": "/"}
    assert "retry_policy" not in first["route"]
    assert attempt["name"] == "attempt"
    options = cluster(tree, "tool-mail")["typed_extension_protocol_options"]
    (protocol,) = options.values()
    assert protocol["common_http_protocol_options"] == {"max_requests_per_connection": 1}


def test_a_caller_may_name_its_request_and_call_and_nothing_else_that_envoy_acts_on():
    tree = rendered(tools=(tool(),), tools_listen=LISTEN)
    (mutation,) = connection_manager(tree, "tools")["early_header_mutation_extensions"]
    removed = {item["remove_on_match"]["key_matcher"]["prefix"] for item in mutation["typed_config"]["mutations"]}
    assert removed == set(headers.STRIPPED_FROM_CLIENTS) - {headers.PREFIX}


def test_an_https_tool_is_verified_by_its_name():
    tree = rendered(tools=(tool(url="https://mail.example:8443"),), tools_listen=LISTEN)
    tls = cluster(tree, "tool-mail")["transport_socket"]["typed_config"]
    assert tls["sni"] == "mail.example"
    (name,) = tls["common_tls_context"]["validation_context"]["match_typed_subject_alt_names"]
    assert name == {"san_type": "DNS", "matcher": {"exact": "mail.example"}}
