"""The rendered configuration, as Envoy reads it and as Envoy's own message classes read it."""

import importlib
import json
import re
import subprocess
import warnings
from pathlib import Path
from typing import Any

import pytest
from ruamel.yaml import YAML

from extproc.app.addresses import Address, ReplicaAddress
from extproc.app.envoy_config import GENERATION_ROUTES, EnvoySettings, GenerationRoute, render
from extproc.app.envoy_process import find_envoy

with warnings.catch_warnings():
    warnings.filterwarnings("ignore", message="Using `@model_validator`")
    from envoy_data_plane.envoy.config.bootstrap.v3 import Bootstrap


def settings(**fields: Any) -> EnvoySettings:
    return EnvoySettings(
        **{
            "listen": (Address(host="127.0.0.1", port=8080),),
            "replicas": (ReplicaAddress.parse("http://127.0.0.1:8001"), ReplicaAddress.parse("http://127.0.0.1:8002")),
            "processor_sockets": (Path("/tmp/p1.sock"),),
            **fields,
        },
        egress_socket=Path("/tmp/egress.sock"),
        admin_socket=Path("/tmp/admin.sock"),
    )


VARIANTS = {
    "plain": settings(),
    "several addresses": settings(listen=tuple(map(Address.parse, ("0.0.0.0:1", "[::]:2", "[::1]:3")))),
    "several processors": settings(processor_sockets=tuple(Path(f"/tmp/p{number}.sock") for number in range(8))),
    "names": settings(replicas=tuple(map(ReplicaAddress.parse, ("http://vllm-0.vllm:8000", "http://10.0.0.1")))),
    "tls": settings(
        replicas=tuple(map(ReplicaAddress.parse, ("https://gpu.example", "https://10.0.0.1", "https://[::1]", "http://[::1]:1")))
    ),
    "log to a file": settings(access_log="/tmp/access log: {x} 'é' \"q\".json"),
    "log to stdout": settings(access_log="stdout"),
    "log to stderr": settings(access_log="stderr"),
    "policies": settings(
        routes=(*GENERATION_ROUTES, GenerationRoute(name="other: {'", path='/x"y', policy={"a": ["50%", "%REQ(x)%", "é😀\n'\""]}))
    ),
}


@pytest.mark.parametrize("name", VARIANTS)
def test_envoy_accepts_it(name, tmp_path) -> None:
    config = tmp_path / "envoy.yaml"
    config.write_text(render(VARIANTS[name]), encoding="utf-8")
    checked = subprocess.run(
        [find_envoy(None), "--mode", "validate", "--config-path", config], capture_output=True, text=True, check=False, timeout=50
    )
    assert checked.returncode == 0, checked.stderr
    assert "deprecated" not in checked.stderr


def as_bootstrap(tree: dict[str, Any]) -> Bootstrap:
    """Envoy's own message classes, which refuse unknown fields in every nested message as well."""
    for package in re.findall(r"type\.googleapis\.com/([\w.]+)\.\w+", json.dumps(tree)):
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message="Using `@model_validator`")
            importlib.import_module(f"envoy_data_plane.{package}")
    for cluster in tree["static_resources"]["clusters"]:
        # betterproto2 0.9 looks for this name as "enforcing_consecutive_5_xx".
        cluster.get("outlier_detection", {}).pop("enforcing_consecutive_5xx", None)
    return Bootstrap.from_dict(tree)


@pytest.mark.parametrize("name", VARIANTS)
def test_envoys_message_classes_know_every_field(name) -> None:
    tree = YAML(typ="safe", pure=True).load(render(VARIANTS[name]))
    bootstrap = as_bootstrap(tree)
    assert [listener.name for listener in bootstrap.static_resources.listeners] == ["front", "egress"]
    assert Bootstrap.parse(bytes(bootstrap)) == bootstrap


def test_the_oracle_refuses_a_misspelt_field() -> None:
    tree = YAML(typ="safe", pure=True).load(render(VARIANTS["plain"]))
    tree["static_resources"]["listeners"][0]["filter_chains"][0]["filters"][0]["typed_config"]["stream_idle_timout"] = "1s"
    with pytest.raises(KeyError, match="stream_idle_timout"):
        as_bootstrap(tree)
