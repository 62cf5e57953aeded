"""The ``deltafence`` command.

This module and the commands in ``PLAIN_COMMANDS`` need the standard library alone, since a replica's pod installs the wheel
without extras. Everything else is loaded when it is called, and a missing package is answered with the extra that brings it.
"""

import importlib
import sys
from typing import Any, Final

CLICK_COMMANDS: Final = {
    "demo": "extproc.app.demonstration.run:demo",
    "drain": "extproc.app.drain_command:drain",
    "envoy-config": "extproc.app.envoy_config_command:envoy_config",
    "faults": "extproc.app.faults_command:faults",
    "health": "extproc.app.health_command:health",
    "journal": "extproc.app.journal_command:journal",
    "policy": "extproc.app.policy_command:policy",
    "processor": "extproc.app.processor_command:processor",
    "tools": "extproc.app.tools_command:tools",
    "top": "extproc.app.top_command:top",
    "up": "extproc.app.up:up",
}
"""Name to ``module:attribute`` of a click command. Needs the ``gateway`` extra."""

PLAIN_COMMANDS: Final[dict[str, str]] = {
    "probe": "extproc.worker.probe:main",
}
"""Name to ``module:function``; the function takes the arguments after the name and returns the exit status. Needs no extra."""


def load(target: str) -> Any:  # noqa: ANN401  (a click command or a function: each table says which)
    """The object that ``module:attribute`` names."""
    module, _, attribute = target.partition(":")
    return getattr(importlib.import_module(module), attribute)


def main() -> None:
    """Run the command line of this process and exit with its status."""
    arguments = sys.argv[1:]
    if arguments and arguments[0] in PLAIN_COMMANDS:
        sys.exit(load(PLAIN_COMMANDS[arguments[0]])(arguments[1:]))
    try:
        load("extproc.app.command_group:root")(arguments, prog_name="deltafence")
    except ModuleNotFoundError as missing:
        if missing.name is None or missing.name.partition(".")[0] == "extproc":
            raise
        sys.exit(f'deltafence: {missing.name} is not installed; install the wheel with its extra "gateway"')
