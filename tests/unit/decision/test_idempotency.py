"""Idempotency-Key: syntax, scope, and what a repeat is told."""

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from extproc.contract.errors import FORMS
from extproc.decision.effects import Outcome
from extproc.decision.idempotency import (
    KEY_CHARACTERS_MAX,
    REFUSALS,
    BoundRequest,
    ClaimOutcome,
    InvalidKey,
    decide_claim,
    fingerprint,
    hash_key,
    parse_key,
)


@pytest.mark.parametrize(
    ("values", "key"),
    [
        ([], None),
        (['"8e03978e-40d5-43e8-bc93-6894a57f9324"'], "8e03978e-40d5-43e8-bc93-6894a57f9324"),
        (["8e03978e-40d5-43e8-bc93-6894a57f9324"], "8e03978e-40d5-43e8-bc93-6894a57f9324"),
        ([' "a key with spaces" '], "a key with spaces"),
        (['"a \\"quoted\\" \\\\ key"'], 'a "quoted" \\ key'),
        (["req_01J0000000000000000000000A:call_07"], "req_01J0000000000000000000000A:call_07"),
        (["x" * KEY_CHARACTERS_MAX], "x" * KEY_CHARACTERS_MAX),
    ],
)
def test_a_quoted_and_a_bare_key_are_the_same_key(values: list[str], key: str | None):
    assert parse_key(values) == key


@pytest.mark.parametrize(
    "values",
    [
        ["a", "b"],
        ["a, b"],
        ["a b"],
        [""],
        ['""'],
        ['"a'],
        ['a"'],
        ['"a\\b"'],
        ['"a"; p=1'],
        ["a;p=1"],
        ["clé"],
        ['"cl\xe9"'],
        ['"a\tb"'],
        ["a\x00b"],
        ["x" * (KEY_CHARACTERS_MAX + 1)],
    ],
)
def test_what_is_no_key_is_refused_without_being_repeated(values: list[str]):
    with pytest.raises(InvalidKey) as refusal:
        parse_key(values)
    assert not any(len(value) > 1 and value in str(refusal.value) for value in values)


@given(st.text(st.characters(min_codepoint=0x20, max_codepoint=0x7E), min_size=1, max_size=KEY_CHARACTERS_MAX))
def test_every_string_of_the_draft_is_read_back(key: str):
    escaped = key.replace("\\", "\\\\").replace('"', '\\"')
    assert parse_key([f'"{escaped}"']) == key


@given(st.text(max_size=300))
def test_any_header_is_read_or_refused(value: str):
    try:
        key = parse_key([value])
    except InvalidKey:
        return
    assert key is not None
    assert 0 < len(key) <= KEY_CHARACTERS_MAX


TEXTS = st.text(st.characters(exclude_categories=[]), max_size=6)


@given(st.lists(st.tuples(TEXTS, st.text(st.characters(codec="ascii"), max_size=6)), min_size=2, max_size=6, unique=True))
def test_two_callers_keys_never_meet(pairs: list[tuple[str, str]]):
    assert len({hash_key(b"secret", caller, key) for caller, key in pairs}) == len(pairs)


def test_a_hash_depends_on_the_gateways_secret():
    assert hash_key(b"one", "caller", "key") != hash_key(b"two", "caller", "key")


@given(st.lists(st.tuples(TEXTS, TEXTS, st.binary(max_size=6)), min_size=2, max_size=6, unique=True))
def test_different_requests_have_different_fingerprints(requests: list[tuple[str, str, bytes]]):
    requests = [(method.encode("ascii", "replace").decode(), path, body) for method, path, body in requests]
    assert len({fingerprint(*request) for request in requests}) == len(set(requests))


EXPECTED = {
    # running, outcome, first_delta_sent
    (True, None, False): ClaimOutcome.IN_PROGRESS,
    (True, None, True): ClaimOutcome.IN_PROGRESS,
    (False, None, False): ClaimOutcome.NEW,
    (False, Outcome.COMPLETED, True): ClaimOutcome.COMPLETED,
    (False, Outcome.INTERRUPTED, True): ClaimOutcome.PARTIAL,
    (False, Outcome.FAILED, False): ClaimOutcome.NEW,
    (False, Outcome.FAILED, True): ClaimOutcome.PARTIAL,
    (False, Outcome.CANCELLED, False): ClaimOutcome.NEW,
    (False, Outcome.CANCELLED, True): ClaimOutcome.PARTIAL,
}


@pytest.mark.parametrize(("state", "expected"), EXPECTED.items())
def test_a_repeat_runs_only_where_nothing_was_delivered(state: tuple[bool, Outcome | None, bool], expected: ClaimOutcome):
    running, outcome, first_delta_sent = state
    bound = BoundRequest(same_request=True, running=running, outcome=outcome, first_delta_sent=first_delta_sent)
    assert decide_claim(bound) is expected


def test_a_delivery_is_never_followed_by_a_new_run():
    for running, outcome in itertools.product((False, True), (None, *Outcome)):
        bound = BoundRequest(same_request=True, running=running, outcome=outcome, first_delta_sent=True)
        assert decide_claim(bound) is not ClaimOutcome.NEW


def test_another_request_under_a_used_key_is_told_so_in_every_state():
    for running, outcome, sent in itertools.product((False, True), (None, *Outcome), (False, True)):
        bound = BoundRequest(same_request=False, running=running, outcome=outcome, first_delta_sent=sent)
        assert decide_claim(bound) is ClaimOutcome.KEY_REUSED


def test_the_drafts_statuses():
    assert {outcome: FORMS[code].status for outcome, code in REFUSALS.items()} == {
        ClaimOutcome.IN_PROGRESS: 409,
        ClaimOutcome.PARTIAL: 409,
        ClaimOutcome.COMPLETED: 409,
        ClaimOutcome.KEY_REUSED: 422,
    }
    assert set(REFUSALS) == set(ClaimOutcome) - {ClaimOutcome.NEW}
