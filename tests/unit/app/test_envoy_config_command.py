"""deltafence envoy-config: what it writes and what it refuses."""

from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from ruamel.yaml import YAML

from extproc.app.envoy_config_command import envoy_config
from extproc.contract.headers import POLICY

REQUIRED = (
    *("--listen", "0.0.0.0:8080", "--listen", "[::]:8080"),
    *("--replica", "http://vllm.default.svc:8000"),
    *("--processor-socket", "/run/deltafence/processor-1.sock"),
    *("--egress-socket", "/run/deltafence/egress.sock"),
    *("--envoy-admin", "/run/deltafence/envoy-admin.sock"),
)


def run(*arguments: str) -> Result:
    return CliRunner().invoke(envoy_config, [*REQUIRED, *arguments])


def routes_file(directory: Path, text: str) -> str:
    file = directory / "routes.yaml"
    file.write_text(text)
    return str(file)


def generation_routes(text: str) -> dict[str, dict[str, object]]:
    (front, _egress) = YAML(typ="safe").load(text)["static_resources"]["listeners"]
    manager = front["filter_chains"][0]["filters"][0]["typed_config"]
    routes = manager["route_config"]["virtual_hosts"][0]["routes"]
    return {route["name"]: route for route in routes if "path" in route["match"]}


def test_it_prints_the_configuration() -> None:
    result = run()
    assert result.exit_code == 0
    assert list(generation_routes(result.output)) == ["chat", "completions", "responses", "messages"]


def test_it_writes_a_file(tmp_path: Path) -> None:
    output = tmp_path / "envoy.yaml"
    assert run("--output", str(output)).output == ""
    assert output.read_text() == run().output


def test_a_file_that_can_not_be_written_is_an_error(tmp_path: Path) -> None:
    result = run("--output", str(tmp_path / "absent" / "envoy.yaml"))
    assert result.exit_code == 1
    assert "absent" in result.output


def test_routes_and_their_policies_come_from_a_file(tmp_path: Path) -> None:
    routes = "[{name: chat, path: /v1/chat/completions, policy: {tools: ledger}}, {name: other, path: /other}]"
    written = generation_routes(run("--routes", routes_file(tmp_path, routes)).output)
    assert list(written) == ["chat", "other"]
    assert f"'{POLICY}', 'value': '{{\"tools\":\"ledger\"}}'" in str(written["chat"])
    assert "typed_per_filter_config" not in written["other"]


@pytest.mark.parametrize(
    ("routes", "reason"),
    [
        ("{name: chat}", "not a list of routes"),
        ("[{name: chat}]", "route 1: it has a name, a path and perhaps a policy, and nothing else"),
        ("[{name: chat, path: /a, polcy: {}}]", "route 1: it has a name"),
        ("[5]", "route 1: it has a name"),
        ("[{name: chat, path: a}]", "does not start with /"),
        ("[{name: chat, path: /a, policy: {mode: x, tools: y}}]", '(chat): policy: tools: "y" is not known'),
        ("[", "document: not YAML or JSON"),
        ("[]", "routes is empty"),
    ],
)
def test_routes_that_can_not_work_are_refused_with_the_reason(tmp_path: Path, routes: str, reason: str) -> None:
    result = run("--routes", routes_file(tmp_path, routes))
    assert result.exit_code == 1
    assert reason in result.output


def test_a_routes_file_that_is_missing_is_an_error(tmp_path: Path) -> None:
    assert run("--routes", str(tmp_path / "absent.yaml")).exit_code == 1


def test_settings_that_can_not_work_are_refused() -> None:
    assert "not absolute" in run("--processor-socket", "relative.sock").output


def test_tools_get_a_listener_of_their_own() -> None:
    result = run("--tool", "mail=http://10.0.0.9:9000,require_key=true", "--tools-listen", "127.0.0.1:8081")
    listeners = YAML(typ="safe").load(result.output)["static_resources"]["listeners"]
    assert [listener["name"] for listener in listeners] == ["front", "tools", "egress"]
    assert "require_key" in str(listeners[1])


def test_tools_without_a_listener_are_refused() -> None:
    result = run("--tool", "mail=http://10.0.0.9:9000")
    assert result.exit_code == 1
    assert "tools_listen is not set" in result.output


def test_envoys_own_time_limits_are_options() -> None:
    text = run("--stream-idle", "30m", "--stream-max", "2h").output
    manager = YAML(typ="safe").load(text)["static_resources"]["listeners"][0]["filter_chains"][0]["filters"][0]["typed_config"]
    assert manager["stream_idle_timeout"] == "1800s"
    assert manager["common_http_protocol_options"]["max_stream_duration"] == "7200s"


def test_a_limit_below_a_second_is_refused() -> None:
    result = run("--stream-idle", "100ms")
    assert result.exit_code == 1
    assert "idle_s_max is not above 0" in result.output
