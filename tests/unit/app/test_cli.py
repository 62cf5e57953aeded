import subprocess
import sys

import pytest
from click.testing import CliRunner

from extproc import __version__
from extproc.app import cli
from extproc.app.command_group import root

WITHOUT = """
import sys

class Absent:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {absent!r}:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)

sys.meta_path.insert(0, Absent())
sys.argv = ["deltafence", *{arguments!r}]
from extproc.app import cli
cli.PLAIN_COMMANDS["plain"] = "builtins:len"
cli.main()
"""


def run_without(absent: set[str], *arguments: str) -> subprocess.CompletedProcess[str]:
    """The command in an interpreter where some packages are not installed."""
    script = WITHOUT.format(absent=absent, arguments=arguments)
    return subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False, timeout=50)


@pytest.mark.parametrize("absent", ["click", "aiohttp", "jinja2", "ruamel"])
def test_a_missing_package_is_answered_with_its_extra(absent) -> None:
    result = run_without({absent}, "up", "--replica", "http://127.0.0.1:1")
    assert result.returncode == 1
    assert result.stdout == ""
    assert f"deltafence: {absent}" in result.stderr
    assert result.stderr.endswith('is not installed; install the wheel with its extra "gateway"\n')


def test_plain_commands_need_no_extra() -> None:
    result = run_without({"click", "aiohttp", "jinja2", "ruamel", "grpc", "google", "jsonschema", "orjson"}, "plain", "a", "b")
    assert (result.returncode, result.stderr) == (2, "")


def test_every_registered_command_exists() -> None:
    result = CliRunner().invoke(root, ["--help"])
    assert result.exit_code == 0
    for name in cli.CLICK_COMMANDS:
        assert f"\n  {name} " in result.output


def test_an_unknown_command_is_named() -> None:
    result = CliRunner().invoke(root, ["nonsense"])
    assert result.exit_code == 2
    assert "nonsense" in result.output


def test_the_version_is_told() -> None:
    assert __version__ in CliRunner().invoke(root, ["--version"]).output
