"""deltafence policy: what it prints and how it ends."""

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from extproc.app.policy_command import policy
from extproc.routes.document import document_of, read_policy


def run(*arguments: str, stdin: str = "") -> Result:
    return CliRunner().invoke(policy, arguments, input=stdin)


@pytest.fixture
def good(tmp_path: Path) -> str:
    file = tmp_path / "good.yaml"
    file.write_text("lease: {ttl_ms: 60000, cancel_timeout_ms: 30000}\n")
    return str(file)


@pytest.fixture
def bad(tmp_path: Path) -> str:
    file = tmp_path / "bad.yaml"
    file.write_text("mode: never\nlease: {ttl_ms: 1}\n")
    return str(file)


def test_lint_says_what_it_checked(good: str) -> None:
    result = run("lint", good)
    assert (result.exit_code, result.output) == (0, f"{good}: ok (policy)\n")


def test_lint_prints_every_problem_and_ends_with_1(good: str, bad: str) -> None:
    result = run("lint", bad, good)
    assert result.exit_code == 1
    assert result.output.splitlines() == [
        f'{bad}: policy: mode: "never" is not known; write one of enforce, observe, off',
        f"{bad}: policy: lease.ttl_ms: 1 is below 500; set at least 500: a shorter lease runs out in an ordinary pause and kills "
        "healthy streams",
        f"{good}: ok (policy)",
    ]


def test_lint_reads_manifests_from_standard_input() -> None:
    result = run("lint", "-", stdin="apiVersion: v1\nkind: Pod\n")
    assert (result.exit_code, result.output) == (0, "-: nothing of deltafence's in it\n")


def test_lint_for_machines(bad: str) -> None:
    result = run("lint", "--json", bad)
    assert result.exit_code == 1
    said = json.loads(result.output)
    assert said["ok"] is False
    assert said["checked"] == {bad: ["policy"]}
    assert said["problems"][0] == {
        "file": bad,
        "object": "policy",
        "path": "mode",
        "problem": '"never" is not known',
        "fix": "write one of enforce, observe, off",
    }
    assert json.loads(run("lint", "--json", "-", stdin="mode: enforce").output)["ok"] is True


def test_lint_checks_against_a_default(good: str) -> None:
    result = run("lint", "--default", good, "-", stdin="lease: {ttl_ms: 20000}")
    assert result.exit_code == 1
    assert "lease.cancel_timeout_ms 30000 exceeds lease.ttl_ms 20000" in result.output


def test_a_file_that_can_not_be_read_ends_with_2(tmp_path: Path) -> None:
    result = run("lint", str(tmp_path / "absent.yaml"))
    assert result.exit_code == 2
    assert "can't be read" in result.output


def test_show_prints_a_policy_file_with_each_keys_source(good: str) -> None:
    result = run("show", good)
    assert result.exit_code == 0
    assert f"  ttl_ms: 60000{' ' * 43}# file {good}\n" in result.output
    assert "# built-in default" in result.output
    assert read_policy(result.output) == read_policy(Path(good).read_text())


def test_show_for_machines() -> None:
    said = json.loads(run("show", "--json", "-", stdin="tools: ledger").output)
    assert said["policy"] == document_of(read_policy("tools: ledger"))
    assert said["sources"]["tools"] == "standard input"
    assert said["sources"]["mode"] == "built-in default"


def test_show_refuses_a_bad_policy_with_every_problem(bad: str) -> None:
    result = run("show", bad)
    assert result.exit_code == 1
    assert result.output.count(bad) == 2


REPORT = {
    "default": {"policy": {"tools": "refuse"}, "sources": {"tools": "file policy.yaml"}, "errors": []},
    "routes": [
        {
            "name": "httproute/llm/chat/rule/0",
            "object": "HTTPRoute llm/chat",
            "policy": {"mode": "enforce", "lease": {"ttl_ms": 5000}},
            "sources": {
                "mode": "built-in default",
                "lease.ttl_ms": "annotation deltafence.io/lease-ttl-ms of HTTPRoute llm/chat",
            },
            "errors": ["route metadata: mode: no"],
        },
        {"name": "own", "object": None, "policy": {}, "sources": {}, "errors": []},
    ],
    "objects": [
        {"object": "HTTPRoute llm/chat", "refused": ["deltafence.io/tools: no"], "policy": {}, "sources": {}, "errors": []},
        {
            "object": "HTTPRoute llm/other",
            "refused": [],
            "policy": {"mode": "off"},
            "sources": {"mode": "annotation deltafence.io/mode of HTTPRoute llm/other"},
            "errors": [],
        },
    ],
    "watches": [
        {"collection": "httproutes", "standing": "stale", "age_s": 12.5, "trouble": "away"},
        {"collection": "grpcroutes", "standing": "current", "age_s": 0.1, "trouble": ""},
        {"collection": "virtualservices", "standing": "absent", "age_s": None, "trouble": "404"},
    ],
}


@pytest.fixture
def admin() -> Iterator[str]:
    class Admin(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            body = json.dumps(REPORT).encode()
            self.send_response(200 if self.path == "/deltafence/v1/routes" else 404)
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002  (the base class's name)
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Admin) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()


@pytest.mark.parametrize("name", ["chat", "llm/chat", "HTTPRoute llm/chat", "httproute/llm/chat/rule/0"])
def test_explain_finds_a_route_by_any_of_its_names(admin: str, name: str) -> None:
    result = run("explain", "--route", name, "--admin", admin)
    assert result.exit_code == 0
    assert result.output.startswith("# route httproute/llm/chat/rule/0 of HTTPRoute llm/chat\n")
    assert "  ttl_ms: 5000" in result.output
    assert "# annotation deltafence.io/lease-ttl-ms of HTTPRoute llm/chat" in result.output
    assert "# refused: route metadata: mode: no" in result.output
    assert "the last good annotations stay: deltafence.io/tools: no" in result.output or "httproute" in name
    assert "# httproutes: stale, 12.5 s old: away" in result.output
    assert "grpcroutes" not in result.output
    assert "own" not in result.output
    assert "virtualservices" not in result.output, "what is not installed can't be annotated"


def test_explain_shows_an_annotated_object_before_its_first_request(admin: str) -> None:
    result = run("explain", "--route", "other", "--admin", admin)
    assert result.exit_code == 0
    title, policy, *_ = result.output.splitlines()
    assert title == "# HTTPRoute llm/other, by which no request has come yet"
    assert policy.startswith('mode: "off" ')
    assert policy.endswith("  # annotation deltafence.io/mode of HTTPRoute llm/other")


def test_explain_shows_every_route_and_the_default_of_the_others(admin: str) -> None:
    output = run("explain", "--admin", admin).output
    assert output.startswith("# default, of every route that says nothing itself\ntools:")
    assert "# route own\n" in output
    assert "# HTTPRoute llm/other, by which" in output
    assert len(json.loads(run("explain", "--json", "--admin", admin).output)["routes"]) == 2


def test_explain_of_an_unknown_route_names_the_known_ones(admin: str) -> None:
    result = run("explain", "--route", "nowhere", "--admin", admin)
    assert result.exit_code == 1
    assert "known: httproute/llm/chat/rule/0, own, HTTPRoute llm/chat, HTTPRoute llm/other" in result.output


def test_explain_without_a_processor_says_so() -> None:
    result = run("explain", "--admin", "http://127.0.0.1:1")
    assert result.exit_code == 1
    assert "http://127.0.0.1:1: " in result.output
