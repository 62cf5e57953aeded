"""Documents over policies: what is said changes, what is not said stays, what is refused changes nothing."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from extproc.decision.policy import DEFAULT_POLICY, DeadlinesPolicy, LeasePolicy, Mode, Policy, ToolsMode
from extproc.routes.document import document_of, layer_of, leaf_values, overlay, read_layer, read_policy
from extproc.routes.problems import PolicyError, Problem
from extproc.routes.schema import LEAVES

SEED_DOCUMENT = """
on_upstream_failure:
  before_first_delta:
    require: [source_attempt_fenced, retry_budget_available]
    action: retry_prefill_on_healthy_replica
    max_attempts: 2
  after_first_delta:
    action: terminate_stream
    client_error: upstream_decode_interrupted
    automatic_retry: false
  uncertain_source_liveness:
    action: fence_source_attempt
    wait_for: cancel_ack_or_lease_expiry
    then: retry_only_if_no_delta_was_sent
"""


def problems(text: str, base: Policy = DEFAULT_POLICY) -> list[str]:
    with pytest.raises(PolicyError) as caught:
        read_policy(text, base=base)
    return [str(problem) for problem in caught.value.problems]


def test_r14_the_seeds_own_document_is_the_default_policy() -> None:
    assert read_policy(SEED_DOCUMENT) == DEFAULT_POLICY


def test_an_empty_document_changes_nothing() -> None:
    base = Policy(max_attempts=3, tools=ToolsMode.LEDGER)
    assert read_policy("", base=base) == base
    assert read_policy("{}", base=base) == base


def test_a_complete_document_is_read_back() -> None:
    policy = Policy(
        mode=Mode.OBSERVE,
        retry_before_first_delta=False,
        max_attempts=1,
        lease=LeasePolicy(ttl_ms=3_000, cancel_timeout_ms=3_000),
        tools=ToolsMode.LEDGER,
        deadlines=DeadlinesPolicy(first_delta_ms=5_000, total_ms=5_000, idle_ms=2_000, finish_linger_ms=0),
    )
    assert read_policy(json.dumps(document_of(policy))) == policy


def test_missing_keys_keep_the_bases_values() -> None:
    base = Policy(max_attempts=3, lease=LeasePolicy(ttl_ms=9_000, cancel_timeout_ms=1_000))
    policy = read_policy("lease: {ttl_ms: 8000}", base=base)
    assert policy == Policy(max_attempts=3, lease=LeasePolicy(ttl_ms=8_000, cancel_timeout_ms=1_000))


def test_fail_never_repeats() -> None:
    policy = read_policy("on_upstream_failure: {before_first_delta: {action: fail, max_attempts: 4}}")
    assert policy.attempts_allowed == 1


def test_every_problem_is_reported_with_path_and_fix() -> None:
    assert problems(
        "{mode: enforc, lease: {ttl_ms: 1, ttl: 5}, on_upstream_failure: {before_first_delta: {max_attempts: 0}}}"
    ) == [
        'mode: "enforc" is not known; write one of enforce, observe, off',
        "on_upstream_failure.before_first_delta.max_attempts: 0 is below 1; set 1 to never repeat",
        "lease.ttl: unknown key; did you mean ttl_ms?",
        "lease.ttl_ms: 1 is below 500; set at least 500: a shorter lease runs out in an ordinary pause and kills healthy streams",
    ]


def test_an_unknown_key_like_no_other_lists_the_known_ones() -> None:
    assert problems("lease: {zzz: 1}") == ["lease.zzz: unknown key; known here: ttl_ms, cancel_timeout_ms"]


@pytest.mark.parametrize("text", ["[1]", "5", "text", "true"])
def test_a_document_that_is_no_mapping_is_refused(text: str) -> None:
    assert problems(text)[0].startswith(f"document: {json.dumps(json.loads(text) if text != 'text' else text)} is not a mapping")


def test_a_section_without_keys_is_refused() -> None:
    assert problems("lease:") == ["lease: null is not a mapping of keys; write its keys below it, or leave it out"]


def test_a_long_value_is_shown_short() -> None:
    assert len(problems(f"mode: {'x' * 5000}")[0]) < 200


@pytest.mark.parametrize(
    ("text", "path", "relation"),
    [
        (
            "lease: {cancel_timeout_ms: 20000}",
            "lease.cancel_timeout_ms",
            "lease.cancel_timeout_ms 20000 exceeds lease.ttl_ms 10000",
        ),
        ("lease: {ttl_ms: 1000}", "lease.ttl_ms", "lease.cancel_timeout_ms 2000 exceeds lease.ttl_ms 1000"),
        ("deadlines: {first_delta_ms: 9000000}", "deadlines.first_delta_ms", "exceeds deadlines.total_ms 3600000"),
        ("deadlines: {total_ms: 1000}", "deadlines.total_ms", "deadlines.first_delta_ms 600000 exceeds deadlines.total_ms 1000"),
        ("keep_alive: {after_ms: 600001}", "keep_alive.after_ms", "exceeds deadlines.first_delta_ms 600000"),
    ],
)
def test_values_that_contradict_each_other_are_refused(text: str, path: str, relation: str) -> None:
    (problem,) = problems(text)
    assert problem.startswith(f"{path}: ")
    assert relation in problem


def test_a_contradiction_with_the_base_is_refused() -> None:
    base = Policy(lease=LeasePolicy(ttl_ms=60_000, cancel_timeout_ms=30_000))
    assert problems("lease: {ttl_ms: 20000}", base=base)[0].startswith("lease.ttl_ms: lease.cancel_timeout_ms 30000 exceeds")
    assert read_policy("lease: {ttl_ms: 20000}").lease.ttl_ms == 20_000


REQUIRE = "on_upstream_failure.before_first_delta.require"

plain_values = (
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8) | st.sampled_from(["enforce", "fail", "ledger"])
)
near_keys = st.sampled_from([*{word for path in LEAVES for word in path.split(".")}, "unknown"])
near_documents = st.recursive(
    plain_values,
    lambda children: st.dictionaries(near_keys, children, max_size=5) | st.lists(children, max_size=3),
    max_leaves=20,
)


@st.composite
def legal_documents(draw: st.DrawFn) -> dict[str, Any]:
    """Documents whose every value is legal by itself, though two may contradict each other."""
    document: dict[str, Any] = {}
    for path in draw(st.lists(st.sampled_from(list(LEAVES)), unique=True)):
        leaf, *sections = LEAVES[path], *path.split(".")[:-1]
        node = document
        for section in sections:
            node = node.setdefault(section, {})
        rules = leaf.rules
        if "enum" in rules:
            value = draw(st.sampled_from(rules["enum"]))
        elif leaf.kind == "boolean" and "const" not in rules:
            value = draw(st.booleans())
        elif "minimum" in rules and "not" not in rules:
            value = draw(st.integers(rules["minimum"], rules["maximum"]))
        else:
            value = leaf.default
        node[path.rpartition(".")[2]] = value
    return document


def outcome(tree_or_text: object, base: Policy = DEFAULT_POLICY) -> Policy | tuple[Problem, ...]:
    try:
        if isinstance(tree_or_text, str):
            return read_policy(tree_or_text, base=base)
        return overlay(base, layer_of(tree_or_text, source="fuzz"))
    except PolicyError as error:
        return error.problems


@given(near_documents)
def test_any_tree_is_a_policy_or_problems_with_fixes(tree: object) -> None:
    result = outcome([tree])
    assert not isinstance(result, Policy)
    result = outcome(tree if not isinstance(tree, str) else [tree])
    assert isinstance(result, Policy) or all(problem.fix and str(problem).isascii() for problem in result)


@given(st.text(alphabet=st.characters(), max_size=200) | st.text(alphabet="{}[]:,-?*&!%|>'\"#@` \n\t\\ax10~.U", max_size=60))
def test_any_text_is_a_policy_or_problems_with_fixes(text: str) -> None:
    result = outcome(text)
    assert result == DEFAULT_POLICY or all(problem.fix and str(problem).isascii() for problem in result)


@given(near_documents.map(json.dumps))
def test_what_a_document_does_not_say_stays_the_bases(text: str) -> None:
    base = Policy(max_attempts=4)
    before = document_of(base)
    result = outcome(text, base)
    assert document_of(base) == before
    if isinstance(result, Policy):
        said = dict(leaf_values(read_layer(text, source="fuzz").document))
        now = dict(leaf_values(document_of(result)))
        assert now == dict(leaf_values(before)) | said | {REQUIRE: now[REQUIRE]}


@given(legal_documents())
def test_legal_values_are_in_force_or_contradict_each_other(document: dict[str, Any]) -> None:
    result = outcome(json.dumps(document))
    if isinstance(result, Policy):
        now = dict(leaf_values(document_of(result)))
        assert all(now[path] == value for path, value in leaf_values(document))
    else:
        assert all(" exceeds " in problem.problem for problem in result)
