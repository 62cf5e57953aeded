"""The guard on a real uvicorn: what passes, what is refused, what is stopped and when a cancel is acknowledged."""

import asyncio
import io
from dataclasses import replace

import aiohttp
import pytest

from extproc.contract import headers
from extproc.contract.guard import CANCEL_PATH_FORMAT, FACTS_PATH, HEARTBEAT_PATH
from extproc.worker import LeaseGuard
from extproc.worker.guarded_attempt import STOP_AHEAD_MS
from extproc.worker.settings import GuardSettings
from tests.unit.worker.guarded_replica import CHAT, START_MS, GuardedReplica, ScriptedApp


async def refusal_of(response: aiohttp.ClientResponse) -> tuple[int, str]:
    refusal = str((await response.json())["refusal"])
    assert response.headers[headers.REFUSAL] == refusal
    return response.status, refusal


class TestPassing:
    async def test_request_without_a_lease_passes_untouched(self, replica: GuardedReplica) -> None:
        response = await replica.begin(fields={"x-own": "1", headers.ATTEMPT_ID: "att_only_a_name"})
        assert headers.BOOT_ID not in response.headers
        assert (b"x-own", b"1") in replica.app.scopes[0]["headers"]

    async def test_whole_answer_passes_with_the_stamp(self, replica: GuardedReplica) -> None:
        response = await replica.begin(b"data: one\n\n")
        replica.app.chunks.put_nowait(b"data: two\n\n")
        replica.app.chunks.put_nowait(None)
        assert await response.read() == b"data: two\n\n"
        assert response.headers[headers.BOOT_ID] == replica.boot_id
        assert response.headers[headers.NOW_MS] == str(START_MS)
        assert await replica.state_of("att_1") == "finished"

    async def test_app_never_sees_the_secret(self, replica: GuardedReplica) -> None:
        await replica.begin()
        names = {name for name, _ in replica.app.scopes[0]["headers"]}
        assert headers.ATTEMPT_ID.encode() in names
        assert headers.TOKEN.encode() not in names

    async def test_error_of_the_app_stays_the_servers_to_answer(self, replica: GuardedReplica) -> None:
        async def fail() -> bytes:
            raise LookupError("the app's own")

        replica.app.chunks.get = fail  # type: ignore[method-assign]
        response = await replica.start()
        assert response.status == 500
        assert await replica.state_of("att_1") == "stopped"


class TestRefusals:
    @pytest.mark.parametrize(
        ("change", "expected"),
        [
            ({headers.BOOT_ID: "boot_before"}, (409, "wrong_boot_id")),
            ({headers.VALID_UNTIL_MS: str(START_MS)}, (409, "lease_expired")),
            ({headers.VALID_UNTIL_MS: str(START_MS + 300_001)}, (409, "lease_too_long")),
            ({headers.VALID_UNTIL_MS: "soon"}, (400, "malformed_lease")),
            ({headers.VALID_UNTIL_MS: "-1"}, (400, "malformed_lease")),
            ({headers.ATTEMPT_ID: "a b"}, (400, "malformed_lease")),
            ({headers.ATTEMPT_ID: "x" * 65}, (400, "malformed_lease")),
            ({headers.TOKEN: "a-shared-secreT"}, (403, "token_wrong")),
            ({headers.TOKEN: "ä"}, (403, "token_wrong")),
        ],
    )
    async def test_lease_that_does_not_hold_here(
        self, replica: GuardedReplica, change: dict[str, str], expected: tuple[int, str]
    ) -> None:
        response = await replica.post(CHAT, replica.lease() | change)
        assert await refusal_of(response) == expected
        assert not replica.app.scopes

    @pytest.mark.parametrize("missing", [headers.ATTEMPT_ID, headers.BOOT_ID, headers.VALID_UNTIL_MS])
    async def test_incomplete_lease(self, replica: GuardedReplica, missing: str) -> None:
        lease = replica.lease()
        del lease[missing]
        assert await refusal_of(await replica.post(CHAT, lease)) == (400, "malformed_lease")

    async def test_lease_without_a_token(self, replica: GuardedReplica) -> None:
        replica.token = None
        assert await refusal_of(await replica.post(CHAT, replica.lease())) == (401, "token_missing")

    async def test_header_that_stands_twice(self, replica: GuardedReplica) -> None:
        lease = replica.lease()
        doubled = [*lease.items(), (headers.VALID_UNTIL_MS, str(START_MS + 50_000))]
        async with replica.session.post(replica.url + CHAT, headers=doubled) as response:
            assert await refusal_of(response) == (400, "malformed_lease")

    async def test_refusal_carries_a_stamp_for_those_who_hold_the_secret(self, replica: GuardedReplica) -> None:
        response = await replica.post(CHAT, replica.lease(boot_id="boot_before"))
        stamp = {"boot_id": replica.boot_id, "now_ms": START_MS}
        assert await response.json() == {"refusal": "wrong_boot_id", **stamp}
        assert response.headers[headers.BOOT_ID] == replica.boot_id

    async def test_refusal_tells_a_stranger_nothing(self, replica: GuardedReplica) -> None:
        replica.token = "guessed"
        response = await replica.post(CHAT, replica.lease())
        assert await response.json() == {"refusal": "token_wrong"}
        assert headers.BOOT_ID not in response.headers

    async def test_attempt_id_is_served_once(self, replica: GuardedReplica) -> None:
        await replica.begin()
        assert await refusal_of(await replica.post(CHAT, replica.lease())) == (409, "duplicate_attempt")
        replica.app.chunks.put_nowait(None)
        await replica.app.ended.wait()
        assert await refusal_of(await replica.post(CHAT, replica.lease())) == (409, "duplicate_attempt")
        assert len(replica.app.scopes) == 1

    async def test_late_second_copy_is_not_told_that_the_lease_has_ended(self, replica: GuardedReplica) -> None:
        """It has for the copy, but the first one runs on a renewed lease; "expired" would be taken for a proof."""
        lease = replica.lease()
        await replica.begin(fields=lease)
        await replica.heartbeat(("att_1", START_MS + 50_000))
        replica.now_ms += 10_000
        assert await refusal_of(await replica.post(CHAT, lease)) == (409, "duplicate_attempt")


class TestRequiredLease:
    @pytest.fixture
    def settings(self, settings: GuardSettings) -> GuardSettings:
        return replace(settings, require_lease=True)

    async def test_generation_without_a_lease_is_refused(self, replica: GuardedReplica) -> None:
        assert await refusal_of(await replica.post(CHAT)) == (403, "lease_required")

    async def test_everything_else_still_passes(self, replica: GuardedReplica) -> None:
        replica.app.chunks.put_nowait(b"{}")
        replica.app.chunks.put_nowait(None)
        assert (await replica.get("/v1/models")).status == 200


class TestCancel:
    @pytest.fixture(params=["h11", "httptools"])
    def http(self, request: pytest.FixtureRequest) -> str:
        return str(request.param)

    async def test_stops_a_stream_and_cuts_its_connection(self, replica: GuardedReplica) -> None:
        response = await replica.begin()
        answer = await (await replica.cancel()).json()
        assert answer == {"boot_id": replica.boot_id, "now_ms": START_MS, "state": "stopped", "published_chunks": 1}
        assert replica.app.ended.is_set()
        with pytest.raises(aiohttp.ClientPayloadError):  # no last chunk: nobody can take it for a whole answer
            await response.read()

    async def test_before_the_answer_began_the_attempt_itself_is_told(self, replica: GuardedReplica) -> None:
        request = replica.start()
        await replica.app.arrived.wait()
        answer = await (await replica.cancel()).json()
        assert (answer["state"], answer["published_chunks"]) == ("stopped", 0)
        assert await refusal_of(await request) == (409, "revoked")

    async def test_is_acknowledged_only_once_the_app_has_ended(self, replica: GuardedReplica) -> None:
        await replica.begin()
        replica.app.may_end.clear()
        cancelling = asyncio.create_task(replica.cancel())
        await replica.app.cancelled.wait()
        assert await replica.state_of("att_1") == "running"
        assert not cancelling.done()
        replica.app.may_end.set()
        assert (await (await cancelling).json())["state"] == "stopped"

    async def test_app_that_sends_on_while_it_is_being_stopped_publishes_nothing(self, replica: GuardedReplica) -> None:
        response = await replica.begin()
        replica.app.last_words = b"data: published without a lease\n\n"
        assert (await (await replica.cancel()).json())["published_chunks"] == 1
        with pytest.raises(aiohttp.ClientPayloadError):
            await response.content.readany()

    async def test_before_arrival_leaves_a_tombstone(self, replica: GuardedReplica) -> None:
        answer = await (await replica.cancel()).json()
        assert (answer["state"], answer["published_chunks"]) == ("never_started", 0)
        assert await refusal_of(await replica.post(CHAT, replica.lease())) == (409, "tombstoned")
        assert not replica.app.scopes

    async def test_tombstone_is_kept_as_long_as_a_late_arrival_could_hold_a_lease(self, replica: GuardedReplica) -> None:
        late = replica.lease(ttl_ms=300_000)
        await replica.cancel()
        replica.now_ms += 299_999
        assert await refusal_of(await replica.post(CHAT, late)) == (409, "tombstoned")
        replica.now_ms += 1
        assert await refusal_of(await replica.post(CHAT, late)) == (409, "lease_expired")

    async def test_of_a_finished_attempt_says_so(self, replica: GuardedReplica) -> None:
        response = await replica.begin()
        replica.app.chunks.put_nowait(None)
        await response.read()
        answer = await (await replica.cancel()).json()
        assert (answer["state"], answer["published_chunks"]) == ("finished", 2)

    async def test_repeated_is_answered_alike(self, replica: GuardedReplica) -> None:
        await replica.begin()
        first, second = [await (await replica.cancel()).json() for _ in range(2)]
        assert first == second

    async def test_after_the_client_left_still_is_acknowledged(self, replica: GuardedReplica) -> None:
        response = await replica.begin()
        response.close()
        assert (await (await replica.cancel()).json())["state"] == "stopped"

    async def test_is_not_acknowledged_while_an_app_refuses_to_end(self, replica: GuardedReplica) -> None:
        await replica.begin()
        replica.app.may_end.clear()
        cancelling = asyncio.create_task(replica.cancel())
        await replica.app.cancelled.wait()
        replica.now_ms += 60_000
        assert await refusal_of(await cancelling) == (503, "still_running")


class TestExpiry:
    @pytest.fixture(params=["h11", "httptools"])
    def http(self, request: pytest.FixtureRequest) -> str:
        return str(request.param)

    async def test_of_a_silent_app_frees_its_slot_by_itself(self, replica: GuardedReplica) -> None:
        request = replica.start()
        await replica.app.arrived.wait()
        replica.now_ms += 10_000
        await replica.app.ended.wait()
        assert await refusal_of(await request) == (409, "lease_expired")

    async def test_mid_stream_cuts_the_connection(self, replica: GuardedReplica) -> None:
        response = await replica.begin()
        replica.now_ms += 10_000
        replica.app.chunks.put_nowait(b"data: too late\n\n")
        with pytest.raises(aiohttp.ClientPayloadError):
            await response.read()
        assert await replica.state_of("att_1") == "stopped"

    async def test_the_slot_is_free_before_the_lease_is_over(self, replica: GuardedReplica) -> None:
        request = replica.start()
        await replica.app.arrived.wait()
        replica.now_ms += 10_000 - STOP_AHEAD_MS
        await replica.app.ended.wait()
        assert await refusal_of(await request) == (409, "lease_expired")

    async def test_one_millisecond_before_that_a_chunk_still_passes(self, replica: GuardedReplica) -> None:
        response = await replica.begin()
        replica.now_ms += 9_999 - STOP_AHEAD_MS
        replica.app.chunks.put_nowait(b"data: in time\n\n")
        assert await response.content.readany() == b"data: in time\n\n"

    async def test_after_the_last_chunk_stops_nothing(self, replica: GuardedReplica) -> None:
        response = await replica.begin()
        replica.app.chunks.put_nowait(None)
        await response.read()
        replica.now_ms += 10_000
        assert await replica.state_of("att_1") == "finished"


class TestHeartbeat:
    async def test_renews_a_lease(self, replica: GuardedReplica) -> None:
        response = await replica.begin()
        replica.now_ms += 9_000
        answer = await (await replica.heartbeat(("att_1", replica.now_ms + 10_000))).json()
        assert answer["attempts"] == [{"attempt_id": "att_1", "state": "running", "published_chunks": 1}]
        replica.now_ms += 9_000
        replica.app.chunks.put_nowait(b"data: renewed\n\n")
        assert await response.content.readany() == b"data: renewed\n\n"

    async def test_never_shortens_a_lease(self, replica: GuardedReplica) -> None:
        response = await replica.begin()
        await replica.heartbeat(("att_1", START_MS + 10))
        replica.now_ms += 9_000
        replica.app.chunks.put_nowait(b"data: held\n\n")
        assert await response.content.readany() == b"data: held\n\n"

    async def test_revives_nothing_that_was_revoked(self, replica: GuardedReplica) -> None:
        await replica.begin()
        replica.app.may_end.clear()
        cancelling = asyncio.create_task(replica.cancel())
        await replica.app.cancelled.wait()
        await replica.heartbeat(("att_1", replica.now_ms + 50_000))
        replica.app.may_end.set()
        assert (await (await cancelling).json())["state"] == "stopped"

    async def test_of_an_unknown_attempt_creates_nothing(self, replica: GuardedReplica) -> None:
        assert await replica.state_of("att_unknown") == "unknown"
        replica.app.chunks.put_nowait(None)
        assert (await replica.post(CHAT, replica.lease("att_unknown"))).status == 200

    @pytest.mark.parametrize(
        "body",
        [
            b"",
            b"[]",
            b'{"leases": 1}',
            b'{"leases": [{}]}',
            b'{"leases": [{"attempt_id": 1, "valid_until_ms": 1}]}',
            b'{"leases": [{"attempt_id": "att_1", "valid_until_ms": true}]}',
            b'{"leases": [{"attempt_id": "att_1", "valid_until_ms": 1e3}]}',
            b'{"leases": [{"attempt_id": "att_1", "valid_until_ms": 999999999999}]}',
            b'{"leases": [{"attempt_id": "a/b", "valid_until_ms": 1}]}',
            b"\xff",
        ],
    )
    async def test_malformed_is_refused_whole(self, replica: GuardedReplica, body: bytes) -> None:
        async with replica.session.post(replica.url + HEARTBEAT_PATH, headers=replica.secret(), data=body) as response:
            assert response.status == 400

    async def test_too_large_is_refused(self, replica: GuardedReplica) -> None:
        body = io.BytesIO(b" " * 1_048_577)
        async with replica.session.post(replica.url + HEARTBEAT_PATH, headers=replica.secret(), data=body) as response:
            assert response.status == 413


class TestOwnPaths:
    @pytest.mark.parametrize(
        "path", [HEARTBEAT_PATH, CANCEL_PATH_FORMAT.format(attempt_id="att_1"), FACTS_PATH, "/_deltafence/other"]
    )
    async def test_nothing_is_answered_without_the_secret(self, replica: GuardedReplica, path: str) -> None:
        assert await refusal_of(await replica.post(path)) == (401, "token_missing")
        assert await refusal_of(await replica.post(path, {headers.TOKEN: "wrong"})) == (403, "token_wrong")
        assert not replica.app.scopes

    async def test_unknown_path_is_not_handed_to_the_app(self, replica: GuardedReplica) -> None:
        assert (await replica.post("/_deltafence/v2/heartbeat", replica.secret())).status == 404
        assert not replica.app.scopes

    async def test_only_post(self, replica: GuardedReplica) -> None:
        response = await replica.get(HEARTBEAT_PATH, replica.secret())
        assert (response.status, response.headers["allow"]) == (405, "POST")

    async def test_facts_of_a_server_that_is_no_vllm_are_none(self, replica: GuardedReplica) -> None:
        async with replica.session.get(replica.url + FACTS_PATH, headers=replica.secret()) as response:
            assert await response.json() == {"facts": {}, "boot_id": replica.boot_id, "now_ms": replica.now_ms}

    async def test_look_alike_path_is_the_apps(self, replica: GuardedReplica) -> None:
        replica.app.chunks.put_nowait(None)
        assert (await replica.post("/v1/_deltafence/v1/heartbeat")).status == 200
        assert len(replica.app.scopes) == 1


class TestWithoutItsTable:
    """The shared table fails, here because it was closed."""

    async def test_an_attempt_is_refused_and_a_cancel_not_acknowledged(self, replica: GuardedReplica) -> None:
        assert replica.guard is not None
        replica.guard.close()
        assert await refusal_of(await replica.post(CHAT, replica.lease())) == (503, "guard_unavailable")
        assert await refusal_of(await replica.cancel()) == (503, "guard_unavailable")
        assert not replica.app.scopes

    async def test_a_running_attempt_still_ends_with_its_lease(self, replica: GuardedReplica) -> None:
        await replica.begin()
        assert replica.guard is not None
        replica.guard.close()
        replica.now_ms += 10_000
        await replica.app.ended.wait()
        assert replica.app.cancelled.is_set()


class TestServersOwnWays:
    @pytest.mark.parametrize("kind", ["lifespan", "websocket"])
    async def test_everything_but_http_passes(self, settings: GuardSettings, kind: str) -> None:
        seen: list[object] = []

        async def app(*arguments: object) -> None:
            seen.extend(arguments)

        guard = LeaseGuard(app, settings=settings)
        scope, receive, send = {"type": kind}, ScriptedApp.silent_receive, ScriptedApp.refuse_to_send
        await guard(scope, receive, send)
        assert seen == [scope, receive, send]
        guard.close()

    async def test_server_that_cancels_the_request_waits_for_the_app(self, replica: GuardedReplica) -> None:
        assert replica.guard is not None
        lease = [(name.encode(), value.encode()) for name, value in replica.lease().items()]
        scope = {"type": "http", "method": "POST", "path": CHAT, "headers": lease}
        serving = asyncio.create_task(replica.guard(scope, ScriptedApp.silent_receive, ScriptedApp.refuse_to_send))
        await replica.app.arrived.wait()
        serving.cancel()
        with pytest.raises(asyncio.CancelledError):
            await serving
        assert replica.app.ended.is_set()
        assert await replica.state_of("att_1") == "stopped"
