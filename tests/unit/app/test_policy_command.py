"""deltafence policy: what it prints and how it ends."""

import json
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
