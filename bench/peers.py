"""Other people's proxies in front of the same replica, as their documentation starts them, with one worker and no database."""

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from bench import measure
from bench.contender import Contender
from bench.processes import running, wait_until_answering
from extproc.links.listening import free_port
from scripts.install_peers import PEERS

LITELLM_START_S: Final = 120
"""It imports for 10 s on an idle core."""
LITELLM_ENVIRONMENT: Final = {
    "LITELLM_LOCAL_MODEL_COST_MAP": "True",  # no price list from the network
    "LITELLM_DANGEROUSLY_PERMIT_WEAK_OR_UNSET_MASTER_KEY": "true",  # nobody's key is checked on the other ways either
    "LITELLM_LOG": "ERROR",
}


@contextmanager
def litellm(upstream_port: int, folder: Path) -> Iterator[Contender]:
    """LiteLLM's proxy with vLLM as its provider."""
    port, log, config = free_port(), folder / "litellm.log", folder / "litellm.json"
    parameters = {"model": "hosted_vllm/bench", "api_base": f"http://127.0.0.1:{upstream_port}/v1", "api_key": "none"}
    config.write_text(json.dumps({"model_list": [{"model_name": "bench", "litellm_params": parameters}]}))  # JSON is YAML
    command: list[str | Path] = [_executable("litellm"), "--config", config, "--host", "127.0.0.1", "--port", str(port)]
    with running(command, log, os.environ | LITELLM_ENVIRONMENT, has_pipe=False) as child:
        wait_until_answering(port, child, log, deadline_s=LITELLM_START_S)
        yield Contender(port=port, processor_pids=tuple(measure.family(child.pid)), envoy_pids=())


@contextmanager
def vllm_router(upstream_port: int, folder: Path) -> Iterator[Contender]:
    """The vLLM project's router, in Rust."""
    port, log = free_port(), folder / "vllm_router.log"
    addresses = ["--host", "127.0.0.1", "--port", str(port), "--prometheus-port", str(free_port())]
    worker = ["--worker-urls", f"http://127.0.0.1:{upstream_port}", "--policy", "round_robin", "--log-level", "warning"]
    with running([_executable("vllm_router"), *addresses, *worker], log, has_pipe=False) as child:
        wait_until_answering(port, child, log)
        yield Contender(port=port, processor_pids=tuple(measure.family(child.pid)), envoy_pids=())


def _executable(name: str) -> Path:
    """Raises SystemExit where it is not installed."""
    peer = PEERS[name]
    if not peer.is_installed:
        raise SystemExit(f"{peer.requirement} is not installed: `make bench-peers` does it; --only leaves it out")
    return peer.executable
