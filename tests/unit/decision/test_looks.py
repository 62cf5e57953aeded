"""What is sent, and how any answer becomes an observation."""

import json

import pytest

from extproc.decision.looks import OUTCOME_WORDS, Look, Observation, Outcome, read_answer, request_for


@pytest.mark.parametrize(
    ("look", "path"),
    [(Look.METRICS, "/metrics"), (Look.MODELS, "/v1/models"), (Look.HEALTH, "/health"), (Look.PAUSED, "/is_paused")],
)
def test_every_look_but_one_is_a_bare_get(look: Look, path: str):
    request = request_for(look, "m")
    assert (request.method, request.path, request.body) == ("GET", path, b"")


def test_the_short_answer_is_one_token():
    request = request_for(Look.SHORT_ANSWER, 'a "model"')
    assert (request.method, request.path) == ("POST", "/v1/completions")
    assert json.loads(request.body) == {"model": 'a "model"', "prompt": "1", "max_tokens": 1, "temperature": 0}


def test_a_page_is_read_from_a_good_answer_only():
    body = b'vllm:num_requests_running{engine="0"} 1\n'
    good, bad = read_answer(Look.METRICS, 200, body, 3), read_answer(Look.METRICS, 500, body, 3)
    assert good.page is not None
    assert good.is_ok
    assert (bad.page, bad.is_ok, bad.words) == (None, False, "answered 500")


@pytest.mark.parametrize(
    ("body", "models"),
    [
        (b'{"data": [{"id": "a"}, {"id": "b"}]}', 2),
        (b'{"data": []}', 0),
        (b'{"data": {}}', None),
        (b"[]", None),
        (b"<html>", None),
        (b"[" * 100_000, None),
        (b"\xff", None),
    ],
)
def test_models_are_counted_where_there_is_a_list(body: bytes, models: int | None):
    assert read_answer(Look.MODELS, 200, body, 0).models == models
    assert read_answer(Look.MODELS, 503, body, 0).models is None


@pytest.mark.parametrize(
    ("body", "paused"),
    [(b'{"is_paused": true}', True), (b'{"is_paused": false}', False), (b'{"is_paused": "no"}', None), (b"", None)],
)
def test_paused_is_what_the_server_says(body: bytes, paused: bool | None):
    assert read_answer(Look.PAUSED, 200, body, 0).paused is paused
    assert read_answer(Look.PAUSED, 404, body, 0).paused is None


def test_every_outcome_has_words():
    assert set(OUTCOME_WORDS) == set(Outcome)
    failed = Observation(look=Look.METRICS, outcome=Outcome.UNREACHABLE, detail="no route to host")
    assert failed.words == "not reachable (no route to host)"
    assert Observation(look=Look.METRICS, outcome=Outcome.REFUSED).words == "connection refused"
