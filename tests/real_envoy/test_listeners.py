"""What the two listeners do with requests: a real Envoy between replicas that tell what reached them and a scripted processor."""

import asyncio
import json
import ssl
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import pytest

from extproc.app.addresses import ReplicaAddress
from extproc.app.envoy_config import GENERATION_ROUTES, GenerationRoute, destination_of, system_ca_file
from extproc.contract import headers

FORBIDDEN_HEADERS = {
    "x-deltafence-request-id": "req_forged",
    "X-DELTAFENCE-Token": "forged",
    "x-envoy-retry-on": "5xx",
    "x-envoy-upstream-rq-timeout-ms": "1",
    "x-gateway-destination-endpoint": "127.0.0.1:1",
    "x-served-by": "nobody",
    "x-egress-flags": "UF",
}


@pytest.fixture
def egress(run_directory):
    """``await egress(destination)``: one attempt, as a processor sends it."""

    async def attempt(destination: str) -> httpx.Response:
        transport = httpx.AsyncHTTPTransport(uds=str(run_directory / "egress.sock"))
        async with httpx.AsyncClient(transport=transport, timeout=30) as client:
            return await client.post("http://attempt/v1/chat/completions", json={}, headers={headers.DESTINATION: destination})

    return attempt


CLIENTS_OWN_ID = "01890af2-0c4e-7c1f-9d2b-6f6f2f6f6f6f"
"""A UUIDv7: Envoy's default would write into it (https://github.com/envoyproxy/envoy/issues/11532)."""


@pytest.mark.parametrize(("method", "path"), [("GET", "/v1/models"), ("POST", "/v1/embeddings"), ("GET", "/v1/chat/completions")])
async def test_ordinary_requests_arrive_without_forbidden_headers(start_envoy, echo_replica, client, method, path) -> None:
    envoy = await start_envoy([echo_replica()])
    own = {"x-request-id": CLIENTS_OWN_ID, "authorization": "Bearer k"}
    answer = await client.request(method, envoy.url + path, headers={**FORBIDDEN_HEADERS, **own})
    assert answer.status_code == 200
    received = answer.json()["headers"]
    assert received.keys().isdisjoint(name.lower() for name in FORBIDDEN_HEADERS)
    assert received.items() >= own.items()


@pytest.mark.parametrize("route", GENERATION_ROUTES, ids=lambda route: route.name)
@pytest.mark.parametrize("http2", [False, True], ids=["h1", "h2c"])
async def test_generations_arrive_without_forbidden_headers(start_envoy, start_processor, echo_replica, route, http2) -> None:
    await start_processor()
    replica = echo_replica()
    envoy = await start_envoy([replica])
    async with httpx.AsyncClient(http1=not http2, http2=http2, timeout=30) as client:
        answer = await client.post(f"{envoy.url}{route.path}?api-version=1", json={}, headers=FORBIDDEN_HEADERS)
    seen = answer.json()
    assert seen["headers"].keys().isdisjoint(name.lower() for name in FORBIDDEN_HEADERS)
    assert seen["attributes"]["envoy.filters.http.ext_proc"]["xds.route_name"] == route.name
    assert "xds.route_metadata" in seen["attributes"]["envoy.filters.http.ext_proc"]
    assert headers.POLICY not in seen["metadata"]
    assert replica.requests == []


@pytest.mark.parametrize(
    "path",
    [
        "/v1%2Fchat/completions",
        "/v1/chat%2fcompletions",
        "//v1/chat/completions",
        "/v1/./chat/completions",
        "/v1/x/../chat/completions",
        "/v1/chat/completion%73",
        "/v1/chat\\completions",
    ],
)
async def test_no_spelling_of_a_path_gets_past_the_processor(start_envoy, start_processor, echo_replica, client, path) -> None:
    await start_processor()
    replica = echo_replica()
    envoy = await start_envoy([replica])
    answer = await client.post(envoy.url + path, json={})
    assert answer.json()["headers"][":path"] == "/v1/chat/completions"
    assert replica.requests == []


async def test_a_routes_policy_reaches_the_processor_unchanged(start_envoy, start_processor, echo_replica, client) -> None:
    await start_processor()
    policy = {"text": "50% %REQ(x)% é😀 \"q\" 'a' \\ \n", "number": 1.5, "nothing": None}
    routes = (GenerationRoute(name="chat", path="/v1/chat/completions", policy=policy), *GENERATION_ROUTES[1:])
    envoy = await start_envoy([echo_replica()], routes=routes)
    for path, expected in (("/v1/chat/completions", policy), ("/v1/messages", None)):
        metadata = (await client.post(envoy.url + path, json={})).json()["metadata"]
        assert json.loads(metadata.get(headers.POLICY, "null")) == expected


def error_of(answer: httpx.Response) -> dict[str, Any]:
    assert answer.headers["content-type"] == "application/json"
    return answer.json()["error"]


async def test_a_processor_that_fails_is_a_retryable_503(start_envoy, start_processor, echo_replica, client) -> None:
    await start_processor()
    envoy = await start_envoy([echo_replica()])
    answer = await client.post(f"{envoy.url}/v1/chat/completions", json={}, headers={"x-stub": "abort"})
    assert (answer.status_code, answer.headers["retry-after"]) == (503, "1")
    error = error_of(answer)
    assert (error["code"], error["type"], error["reason"]) == ("processor_unavailable", "upstream_error", "processor_gone")
    assert (error["partial_output"], error["delivered_output_tokens"], error["retryable"]) == (False, 0, False)
    assert "/tmp" not in answer.text


async def test_no_processor_at_all_is_the_same(start_envoy, echo_replica, client) -> None:
    envoy = await start_envoy([echo_replica()])
    answer = await client.post(f"{envoy.url}/v1/messages", json={})
    assert (answer.status_code, error_of(answer)["code"]) == (503, "processor_unavailable")
    assert "/tmp" not in answer.text


async def test_a_processor_that_lets_go_is_not_a_way_to_a_replica(start_envoy, start_processor, echo_replica, client) -> None:
    await start_processor()
    replica = echo_replica()
    envoy = await start_envoy([replica])
    answer = await client.post(f"{envoy.url}/v1/chat/completions", json={}, headers={"x-stub": "let-go"})
    assert (answer.status_code, error_of(answer)["code"]) == (503, "processor_bypassed")
    assert replica.requests == []


async def test_a_dead_processor_of_two_costs_no_request(
    start_envoy, start_processor, echo_replica, client, run_directory
) -> None:
    alive, dead = await start_processor("p1"), run_directory / "dead.sock"
    envoy = await start_envoy([echo_replica()], processor_sockets=(alive.path, dead))
    answers = [await client.post(f"{envoy.url}/v1/chat/completions", json={}) for _ in range(20)]
    assert [answer.status_code for answer in answers] == [200] * 20
    assert alive.seen == 20


async def test_one_stream_too_many_is_told_so(start_envoy, start_processor, echo_replica, eventually) -> None:
    processor = await start_processor()
    envoy = await start_envoy([echo_replica()], streams_max=2)

    async def both_wait() -> bool:
        return processor.waiting == 2

    async with httpx.AsyncClient(http1=False, http2=True, timeout=30) as client:
        url = f"{envoy.url}/v1/chat/completions"
        waiting = [asyncio.create_task(client.post(url, json={}, headers={"x-stub": "wait"})) for _ in range(2)]
        await eventually(both_wait, "two streams wait")
        answer = await client.post(url)  # no body: httpcore fails over an answer that comes before the body's end
        for task in waiting:
            task.cancel()
        await asyncio.gather(*waiting, return_exceptions=True)
    assert (answer.status_code, answer.headers["retry-after"]) == (503, "5")
    assert (error_of(answer)["code"], error_of(answer)["reason"]) == ("overloaded", "processors_full")


async def test_clients_never_reach_the_guards_protocol(start_envoy, echo_replica, client) -> None:
    replica = echo_replica()
    envoy = await start_envoy([replica])
    for path in ("/_deltafence/v1/heartbeat", "/%5fdeltafence/v1/heartbeat", "//_deltafence/v1/x", "/v1/../_deltafence/v1/x"):
        answer = await client.post(envoy.url + path, json={})
        assert (answer.status_code, error_of(answer)["code"]) == (404, "not_found")
    assert replica.requests == []


async def test_an_upgrade_opens_on_ordinary_routes_only(start_envoy, start_processor, echo_replica, client) -> None:
    processor = await start_processor()
    replica = echo_replica()
    replica.status = 101
    replica.headers = {"upgrade": "websocket", "connection": "upgrade"}
    envoy = await start_envoy([replica])
    upgrade = {"upgrade": "websocket", "connection": "upgrade"}
    assert (await client.get(f"{envoy.url}/v1/realtime", headers=upgrade)).status_code == 101
    assert (await client.post(f"{envoy.url}/v1/chat/completions", headers=upgrade, json={})).status_code == 403
    assert processor.seen == 0


async def test_a_dead_replica_is_passed_over_on_ordinary_routes(start_envoy, echo_replica, client, closed_port) -> None:
    alive = echo_replica("alive")
    dead = ReplicaAddress.parse(f"http://127.0.0.1:{closed_port}")
    envoy = await start_envoy([dead, alive])
    answers = [await client.post(f"{envoy.url}/v1/embeddings", json={}) for _ in range(6)]
    assert [answer.status_code for answer in answers] == [200] * 6


async def test_no_replica_at_all_is_told_so(start_envoy, client, closed_port) -> None:
    envoy = await start_envoy([ReplicaAddress.parse(f"http://127.0.0.1:{closed_port}")])
    answer = await client.get(f"{envoy.url}/v1/models")
    assert (answer.status_code, answer.headers["retry-after"]) == (503, "5")
    assert error_of(answer)["code"] == "no_healthy_replica"
    assert "UF" in error_of(answer)["reason"].split(",")


async def test_an_attempt_reaches_the_replica_it_names(start_envoy, echo_replica, egress) -> None:
    replicas = [echo_replica(f"r{number}") for number in range(3)]
    await start_envoy(replicas)
    for replica in replicas * 2:
        answer = await egress(destination_of(replica.address))
        assert answer.json()["replica"] == replica.name
        assert answer.headers[headers.SERVED_BY] == destination_of(replica.address)
        assert not [name for name in answer.headers if name.startswith("x-envoy-")]
        assert not [name for name in answer.json()["headers"] if name.startswith("x-envoy-")]


async def test_a_replica_by_name_is_reached_by_its_address(start_envoy, echo_replica, egress) -> None:
    replicas = [ReplicaAddress.parse(f"http://localhost:{echo_replica().port}") for _ in range(2)]
    await start_envoy(replicas)
    for replica in replicas * 2:
        answer = await egress(destination_of(replica))
        assert answer.headers[headers.SERVED_BY] == destination_of(replica) == f"127.0.0.1:{replica.port}"
        assert answer.json()["headers"]["host"] == "localhost"


async def test_an_unknown_destination_shows_in_served_by(start_envoy, echo_replica, egress) -> None:
    replica = echo_replica()
    await start_envoy([replica])
    answer = await egress("127.0.0.1:9")
    assert answer.headers[headers.SERVED_BY] == destination_of(replica.address)


async def test_a_refused_attempt_is_envoys_answer_and_is_not_repeated(start_envoy, echo_replica, egress, closed_port) -> None:
    alive, dead = echo_replica(), ReplicaAddress.parse(f"http://127.0.0.1:{closed_port}")
    envoy = await start_envoy([dead, alive])
    answer = await egress(destination_of(dead))
    assert answer.status_code == 503
    assert answer.headers[headers.EGRESS_FLAGS] == "UF"
    assert answer.headers[headers.EGRESS_DETAILS].startswith("upstream_reset_before_response_started")
    assert headers.SERVED_BY not in answer.headers or answer.headers[headers.SERVED_BY] == destination_of(dead)
    assert alive.requests == []
    assert await envoy.admin.counter("cluster.replicas.upstream_rq_retry") == 0


async def test_a_replica_cannot_forge_the_egress_reports(start_envoy, echo_replica, egress) -> None:
    replica = echo_replica()
    replica.status = 503
    replica.headers = {headers.EGRESS_FLAGS: "UF", headers.EGRESS_DETAILS: "forged", headers.SERVED_BY: "127.0.0.1:9"}
    await start_envoy([replica])
    answer = await egress(destination_of(replica.address))
    assert headers.EGRESS_FLAGS not in answer.headers
    assert headers.EGRESS_DETAILS not in answer.headers
    assert answer.headers.get_list(headers.SERVED_BY) == [destination_of(replica.address)]


TLS_DATA = Path(__file__).parents[1] / "data" / "tls"


@pytest.fixture
def tls_replica(echo_replica):
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    tls.load_cert_chain(TLS_DATA / "server.pem", TLS_DATA / "server.key")
    return echo_replica("secure", tls=tls)


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost"])
async def test_an_https_replica_is_reached_and_checked(start_envoy, tls_replica, echo_replica, egress, client, host) -> None:
    plain = echo_replica("plain")
    secure = replace(tls_replica.address, host=host)
    envoy = await start_envoy([secure, plain], replica_ca=TLS_DATA / "ca.pem")
    assert (await egress(destination_of(secure))).json()["replica"] == "secure"
    assert (await egress(destination_of(plain.address))).json()["replica"] == "plain"
    assert {(await client.get(f"{envoy.url}/v1/models")).json()["replica"] for _ in range(4)} == {"secure", "plain"}


async def test_an_https_replica_of_an_unknown_authority_gets_nothing(start_envoy, tls_replica, egress) -> None:
    await start_envoy([tls_replica], replica_ca=system_ca_file())
    answer = await egress(destination_of(tls_replica.address))
    assert answer.status_code == 503
    assert "CERTIFICATE_VERIFY_FAILED" in answer.headers[headers.EGRESS_DETAILS]
    assert tls_replica.requests == []


async def test_the_access_log_is_json_for_both_listeners(
    start_envoy, start_processor, echo_replica, client, egress, run_directory
) -> None:
    await start_processor()
    path = run_directory / "access.log"
    replica = echo_replica()
    envoy = await start_envoy([replica], access_log=str(path))
    await client.post(f"{envoy.url}/v1/chat/completions?key=secret", json={})
    await egress(destination_of(replica.address))
    await envoy.admin.quit()
    await envoy.child.wait()
    front, out = (json.loads(line) for line in path.read_text().splitlines())
    assert (front["listener"], front["route"], front["path"], front["status"]) == ("front", "chat", "/v1/chat/completions", 200)
    assert {"request_id", "phase", "outcome", "reason", "attempts", "x_request_id"} <= front.keys()
    assert (out["listener"], out["replica"], out["destination"]) == ("egress", *[destination_of(replica.address)] * 2)
    assert {"request_id", "attempt_id"} <= out.keys()
    assert "secret" not in path.read_text()
