"""vLLM's other routes: health, metrics, models, tokenizer."""

import json
from collections.abc import Awaitable, Callable

import pytest

from extproc.sim.faults import Fault, What, Where
from extproc.sim.process import ReplicaProcess
from extproc.sim.settings import MetricsMode

CHAT = {"messages": [{"role": "user", "content": "x"}], "stream": True}
Send = Callable[..., Awaitable]
Get = Callable[..., Awaitable]


def series(text: bytes) -> dict[str, float]:
    lines = [line for line in text.decode().splitlines() if line and not line.startswith("#")]
    return {name: float(value) for name, value in (line.rsplit(" ", 1) for line in lines)}


LABELS = '{engine="0",model_name="sim-model"}'


async def test_metrics_follow_the_requests(replica: ReplicaProcess, send: Send, get: Get) -> None:
    before = series((await get(replica, "/metrics")).body)
    await (await send(replica)).read_to_end()
    after = series((await get(replica, "/metrics")).body)
    changed = {name: after[name] - before[name] for name in after if after[name] != before[name] and name != "process_open_fds"}
    assert changed == {
        f"vllm:prompt_tokens_total{LABELS}": 2,
        f"vllm:generation_tokens_total{LABELS}": 6,
        f"vllm:iteration_tokens_total_count{LABELS}": 6,
        f"vllm:iteration_tokens_total_sum{LABELS}": 8,
        f'vllm:request_success_total{LABELS[:-1]},finished_reason="stop"}}': 1,
    }
    assert after["process_start_time_seconds"] == before["process_start_time_seconds"]
    assert any(name.startswith('vllm:cache_config_info{block_size="16"') for name in after)


async def test_running_and_waiting_are_shown(
    own_replica: Callable[..., object], send: Send, get: Get, eventually: Callable[..., Awaitable]
) -> None:
    stall = Fault(where=Where.IN_PREFILL, what=What.STALL)
    async with own_replica(slots=2, engines=2, faults=(stall,)) as replica:
        for _ in range(5):
            await send(replica)
        await eventually(replica.state, lambda state: (state["running"], state["waiting"]) == (4, 1))
        shown = series((await get(replica, "/metrics")).body)
        running = [shown[f'vllm:num_requests_running{{engine="{label}",model_name="sim-model"}}'] for label in "01"]
        waiting = [shown[f'vllm:num_requests_waiting{{engine="{label}",model_name="sim-model"}}'] for label in "01"]
        assert (running, sum(waiting)) == ([2, 2], 1)
        assert (await get(replica, "/load")).body == b'{"server_load":5}'


async def test_hung_engine_looks_as_a_real_one_does(replica: ReplicaProcess, send: Send, get: Get) -> None:
    """FACTS A: /health 200, metrics answered and frozen, no progress."""
    slow = Fault(where=Where.BEFORE_HEADERS, what=What.SLOW, factor=50)
    await replica.set_faults(slow)
    exchange = await send(replica)
    await exchange.read_until(b"r1:0 ")
    await replica.hang()
    frozen = series((await get(replica, "/metrics")).body)
    assert frozen[f"vllm:num_requests_running{LABELS}"] == 1
    assert (await get(replica, "/health")).status == 200
    later = await send(replica)
    await later.read_until(b"HTTP/1.1 200")
    again = series((await get(replica, "/metrics")).body)
    assert {name: again[name] for name in again if name.startswith("vllm:")} == {
        name: frozen[name] for name in frozen if name.startswith("vllm:")
    }
    assert (await replica.state())["hung"] == ["0"]
    await replica.unhang()
    assert [(await waiting.read_to_end()).end for waiting in (exchange, later)] == ["clean", "clean"]


@pytest.mark.parametrize(
    ("mode", "status", "has_process", "has_engine"),
    [
        (MetricsMode.NORMAL, 200, True, True),
        (MetricsMode.NO_PROCESS_SERIES, 200, False, True),
        (MetricsMode.ONLY_PROCESS_SERIES, 200, True, False),
        (MetricsMode.EMPTY, 200, False, False),
        (MetricsMode.ERROR, 500, False, False),
        (MetricsMode.ABSENT, 404, False, False),
    ],
)
async def test_metrics_page_can_fail_in_every_reported_way(
    replica: ReplicaProcess, get: Get, mode: MetricsMode, status: int, has_process: bool, has_engine: bool
) -> None:
    await replica.set_metrics(mode)
    page = await get(replica, "/metrics")
    assert page.status == status
    assert (b"process_start_time_seconds" in page.body, b"vllm:" in page.body) == (has_process, has_engine)


async def test_silent_metrics_page_leaves_the_rest_alone(replica: ReplicaProcess, send: Send, get: Get) -> None:
    await replica.set_metrics(MetricsMode.SILENT)
    silent = await send(replica, b"", "/metrics", method="GET")
    assert (await get(replica, "/ping")).status == 200
    assert (await (await send(replica)).read_to_end()).end == "clean"
    assert silent.received == b""
    silent.leave()


async def test_models_name_root_and_adapters(own_replica: Callable[..., object], get: Get) -> None:
    async with own_replica(root="org/model@abc", adapters=("sql",)) as replica:
        cards = json.loads((await get(replica, "/v1/models")).body)["data"]
    assert [(card["id"], card["root"], card["parent"]) for card in cards] == [
        ("sim-model", "org/model@abc", None),
        ("sql", "sql", "sim-model"),
    ]


@pytest.mark.parametrize(
    ("body", "count"), [({"prompt": "a b c"}, 3), ({"messages": [{"role": "user", "content": "a b"}]}, 2), ({}, None)]
)
async def test_tokenizer_counts(replica: ReplicaProcess, send: Send, body: dict, count: int | None) -> None:
    answer = await (await send(replica, body, "/tokenize")).read_to_end()
    assert (answer.status, json.loads(answer.body).get("count")) == ((400, None) if count is None else (200, count))
