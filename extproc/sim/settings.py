"""What a replica is told at start: one dataclass, also written and read as command-line options."""

import argparse
from collections.abc import Mapping, Sequence
from dataclasses import MISSING, Field, dataclass, field, fields
from enum import StrEnum
from types import MappingProxyType
from typing import Any, Final

from extproc.sim.faults import Fault, format_fault, parse_fault

FAULTS_VARIABLE: Final = "DELTAFENCE_SIM_FAULTS"
"""Environment variable: faults as for ``--fault``, separated by spaces."""


class MetricsMode(StrEnum):
    """What ``/metrics`` answers (CASES HL-06, HL-07)."""

    NORMAL = "normal"
    NO_PROCESS_SERIES = "no_process_series"
    """As with several API servers: the engine's series, but no ``process_start_time_seconds``."""
    ONLY_PROCESS_SERIES = "only_process_series"
    """As with ``--disable-log-stats``."""
    EMPTY = "empty"
    ERROR = "error"
    ABSENT = "absent"
    """404: a server that has no such page."""
    SILENT = "silent"
    """Accepted, never answered."""


def _option(default: Any, description: str) -> Any:  # noqa: ANN401  (dataclasses.field is typed like this too)
    return field(default=default, metadata={"help": description})


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """One field is one command-line option of ``python -m extproc.sim``: ``token_interval_ms`` is ``--token-interval-ms``."""

    name: str = _option("r1", "who answers; every token of the text carries it")
    host: str = _option("127.0.0.1", "address to listen on")
    port: int = _option(0, "port to listen on; 0: any free one")
    model: str = _option("sim-model", "served model name")
    root: str = _option("sim-model", "the model's root in /v1/models: its path or revision")
    adapters: tuple[str, ...] = _option((), "LoRA adapters, listed as further models")
    tokens: int = _option(8, "text tokens of an answer before its natural end")
    token_interval_ms: float = _option(5.0, "time of one decode step")
    prefill_ms: float = _option(20.0, "time of a prefill, whatever the prompt")
    prefill_us_per_token: float = _option(0.0, "prefill time on top, for each prompt token")
    slots: int = _option(64, "requests that run at once (max-num-seqs); the others wait")
    engines: int = _option(1, "data-parallel engines, each with its own slots and its own `engine` label")
    blocks: int = _option(4096, "KV-cache blocks of 16 tokens in each engine")
    max_model_len: int = _option(131072, "longest prompt plus answer, in tokens")
    guard: bool = _option(False, "wrap the app in extproc.worker.LeaseGuard, as `vllm serve --middleware` does")
    token: str = _option("", "the guard's shared secret")
    tool_url: str = _option("", 'called during attempts whose body contains "sim_tool"')
    metrics: MetricsMode = _option(MetricsMode.NORMAL, "what /metrics answers")  # noqa: RUF009  (a field, not a value)
    faults: tuple[Fault, ...] = _option((), "WHERE:WHAT[,key=value...], for example mid_decode:reset,deltas=3,times=1")
    claims: str = _option("", "a directory that replicas share, to count the requests of a fault with `nth` together")
    record_limit: int = _option(10_000, "requests that /sim/log keeps; 0: none")
    die_with_parent: bool = _option(False, "be killed when the starting process ends (Linux)")

    def arguments(self) -> list[str]:
        """These settings as command-line arguments; fields at their default are left out."""
        arguments: list[str] = []
        for option in fields(self):
            value = getattr(self, option.name)
            if value != option.default:
                arguments += _format_option(option, value)
        return arguments


def parse_settings(arguments: Sequence[str], *, environment: Mapping[str, str] = MappingProxyType({})) -> Settings:
    """Read command-line arguments, and further faults from the environment; exits with a usage message where they are wrong."""
    parser = argparse.ArgumentParser(prog="python -m extproc.sim", description="A replica look-alike with a vLLM API.")
    for option in fields(Settings):
        parser.add_argument(_flag(option), dest=option.name, help=option.metadata["help"], **_reading(option))
    more = [f"--fault={text}" for text in environment.get(FAULTS_VARIABLE, "").split()]
    read = {name: value for name, value in vars(parser.parse_args([*arguments, *more])).items() if value is not None}
    for name in ("adapters", "faults"):
        read[name] = tuple(read.get(name, ()))
    return Settings(**read)


def _flag(option: Field[Any]) -> str:
    # Options that may be given several times are named for one of their values.
    name = option.name.removesuffix("s") if isinstance(option.default, tuple) else option.name
    return "--" + name.replace("_", "-")


def _reading(option: Field[Any]) -> dict[str, Any]:
    assert option.default is not MISSING
    if isinstance(option.default, bool):
        return {"action": "store_true", "default": None}
    if isinstance(option.default, tuple):
        return {"action": "append", "type": parse_fault if option.name == "faults" else str}
    if isinstance(option.default, StrEnum):
        return {"type": type(option.default), "choices": list(type(option.default))}
    return {"type": type(option.default)}


def _format_option(option: Field[Any], value: Any) -> list[str]:  # noqa: ANN401  (any field's value)
    if isinstance(value, bool):
        return [_flag(option)]
    if option.name == "faults":
        return [f"{_flag(option)}={format_fault(fault)}" for fault in value]
    if isinstance(value, tuple):
        return [f"{_flag(option)}={item}" for item in value]
    return [f"{_flag(option)}={value}"]
