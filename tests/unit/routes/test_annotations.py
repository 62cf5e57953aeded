"""Annotations as a policy's source (CASES area 8)."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from extproc.decision.policy import DEFAULT_POLICY, Mode, Policy, ToolsMode
from extproc.routes.annotations import ENVOY_GATEWAY_PREFIX, PATHS, PREFIX, annotation_key, read_annotations
from extproc.routes.document import Layer, document_of, leaf_values, overlay
from extproc.routes.problems import PolicyError
from extproc.routes.schema import LEAVES

CHAT = "HTTPRoute default/chat"


def read(**annotations: str) -> Layer:
    layer = read_annotations({PREFIX + key.replace("_", "-"): value for key, value in annotations.items()}, source=CHAT)
    assert layer is not None
    return layer


def policy(**annotations: str) -> Policy:
    return overlay(DEFAULT_POLICY, read(**annotations))


def problems(**annotations: str) -> list[str]:
    with pytest.raises(PolicyError) as caught:
        policy(**annotations)
    return [str(problem) for problem in caught.value.problems]


def test_every_key_of_the_document_has_one_annotation() -> None:
    assert sorted(PATHS.values()) == sorted(LEAVES)
    assert PATHS["max-attempts"] == "on_upstream_failure.before_first_delta.max_attempts"
    assert all(len(key) <= 63 for key in PATHS), "Kubernetes' limit on an annotation's name"


@pytest.mark.parametrize("path", LEAVES)
def test_every_annotation_sets_its_key(path: str) -> None:
    leaf = LEAVES[path]
    value = leaf.rules.get("enum", [leaf.default])[-1]
    if leaf.kind in ("integer", "number"):
        value = leaf.rules["maximum"]
    text = ", ".join(value) if leaf.kind == "array" else value if leaf.kind == "string" else json.dumps(value)
    layer = read_annotations({PREFIX + annotation_key(path): text}, source=CHAT)
    assert layer is not None
    assert dict(leaf_values(layer.document)) == {path: value}
    assert layer.origin(path) == f"annotation {PREFIX}{annotation_key(path)} of {CHAT}"


@pytest.mark.parametrize("annotations", [{"mode": "observe"}, {"policy": "mode: observe"}])
def test_watching_can_not_be_chosen_by_an_annotation(annotations: dict[str, str]) -> None:
    """The filter in Envoy stays one that answers: the route would be let through, and nobody would watch it."""
    (name,) = annotations
    assert problems(**annotations) == [
        f"deltafence.io/{name}: observe needs another filter in Envoy, which an annotation can't put there; "
        "write enforce or off; to watch, set policy.mode: observe in the chart's values (docs/observe.md)"
    ]
    assert policy(policy="mode: observe", mode="off").mode is Mode.OFF


def test_annotations_of_others_are_nothing_to_us() -> None:
    assert read_annotations({"kubernetes.io/mode": "off", "deltafence.example/mode": "off"}, source=CHAT) is None


@pytest.mark.parametrize(("text", "value"), [("true", True), (" TRUE ", True), ("False", False), ("\tfalse\n", False)])
def test_k8_01_booleans_in_any_case_after_trimming(text: str, value: bool) -> None:
    assert policy(journal_replay=text).journal.replay is value


@pytest.mark.parametrize("text", ["'true'", '"true"', "on", "yes", "NO", "1", "0", "t", "", " "])
def test_k8_01_everything_else_is_no_boolean(text: str) -> None:
    assert problems(journal_replay=text) == [
        f"deltafence.io/journal-replay: {json.dumps(text.strip())} is not true or false; write true or false"
    ]


@pytest.mark.parametrize("text", ["131072", "1.31072e+05", "131072.0", " 131072 "])
def test_k8_02_large_integers_in_every_form_that_helm_prints(text: str) -> None:
    tokens = policy(replay_cost_max_prompt_tokens=text).replay_cost.max_prompt_tokens
    assert tokens == 131_072
    assert type(tokens) is int


@pytest.mark.parametrize("text", ["abc", "", "NaN", "inf", "5s", "0123", "1_000", "1.5", "\uff11\uff10"])
def test_k8_03_a_bad_number_is_an_error_with_the_annotations_name(text: str) -> None:
    (problem,) = problems(lease_ttl_ms=text)
    assert problem.startswith("deltafence.io/lease-ttl-ms: ")
    assert problem.endswith("is not a whole number; write a whole number in digits, without a unit")


def test_k8_03_a_negative_limit_is_below_its_bound() -> None:
    assert problems(replay_cost_max_prefill_ms="-1") == [
        "deltafence.io/replay-cost-max-prefill-ms: -1 is below 1; "
        "set at least 1; to never repeat, set on_upstream_failure.before_first_delta.action: fail"
    ]


def test_an_unknown_annotation_is_refused_with_the_one_it_resembles() -> None:
    assert problems(max_atempts="1") == ["deltafence.io/max-atempts: unknown annotation; did you mean max-attempts?"]


def test_one_bad_annotation_refuses_all_of_the_object() -> None:
    assert len(problems(max_attempts="1", tools="maybe", lease_ttl_ms="5s", polcy="{}")) == 3


def test_a_gate_can_not_be_annotated_away() -> None:
    assert "a policy can't switch a gate off" in problems(before_first_delta_require="source_attempt_fenced")[0]
    assert problems(before_first_delta_require="source_attempt_fenced, x")[0].startswith(
        'deltafence.io/before-first-delta-require[1]: "x" is not known'
    )


def test_a_retry_after_the_first_delta_can_not_be_annotated() -> None:
    assert "two answers in one stream" in problems(after_first_delta_automatic_retry="true")[0]


def test_annotations_are_laid_over_the_objects_whole_document() -> None:
    layer = read(policy="{mode: observe, tools: ledger}", mode="enforce")
    assert overlay(DEFAULT_POLICY, layer) == Policy(mode=Mode.ENFORCE, tools=ToolsMode.LEDGER)
    assert layer.origin("mode") == f"annotation deltafence.io/mode of {CHAT}"
    assert layer.origin("tools") == f"annotation deltafence.io/policy of {CHAT}"


def test_problems_of_a_whole_document_carry_annotation_and_path() -> None:
    assert problems(policy="lease: {ttl_ms: 1}")[0].startswith("deltafence.io/policy: lease.ttl_ms: 1 is below 500")
    assert problems(policy="[1]")[0].startswith("deltafence.io/policy: document: [1] is not a mapping")
    assert problems(policy=" \n") == ["deltafence.io/policy: is empty; write a policy document, or remove the annotation"]


def test_values_that_contradict_each_other_name_the_annotation() -> None:
    assert problems(lease_ttl_ms="1000")[0].startswith("deltafence.io/lease-ttl-ms: lease.cancel_timeout_ms 2000 exceeds")


def test_envoy_gateways_copies_keep_their_own_name() -> None:
    layer = read_annotations({ENVOY_GATEWAY_PREFIX + "max-attempts": "3"}, source=CHAT, prefix=ENVOY_GATEWAY_PREFIX)
    assert layer is not None
    assert layer.origin(PATHS["max-attempts"]) == f"annotation gateway.envoyproxy.io/deltafence.max-attempts of {CHAT}"


@given(
    st.dictionaries(st.sampled_from([*PATHS, "policy", "unknown"]), st.text(max_size=12) | st.sampled_from(["true", "1", "fail"]))
)
def test_any_annotations_are_a_policy_or_problems_that_name_them(annotations: dict[str, str]) -> None:
    before = document_of(DEFAULT_POLICY)
    try:
        layer = read_annotations({PREFIX + key: value for key, value in annotations.items()}, source=CHAT)
        refused: list[str] = []
    except PolicyError as error:
        layer, refused = None, [problem.path for problem in error.problems]
    assert all(path.partition("[")[0].removeprefix(PREFIX) in annotations for path in refused)
    assert bool(refused) or (layer is None) == (not annotations)
    assert document_of(DEFAULT_POLICY) == before
