"""The schema against everything that is derived from it: dataclasses, messages, annotations."""

import json
from collections.abc import Iterator, Mapping
from typing import Any

import pytest
from jsonschema import Draft202012Validator

from extproc.decision.policy import DEFAULT_POLICY
from extproc.routes.document import document_of, leaf_values, read_policy, set_leaf
from extproc.routes.problems import PolicyError
from extproc.routes.schema import _WORDS, LEAVES, PROBLEMS_MAX, SCHEMA, Leaf, problems_of

ANNOTATION_WORDS = {"$schema", "$id", "title", "description", "default", "x-fix", "properties", "items", "additionalProperties"}
BOUNDED = [leaf for leaf in LEAVES.values() if "minimum" in leaf.rules]
CONSTANT = [leaf for leaf in LEAVES.values() if "const" in leaf.rules]
CHOSEN = [leaf for leaf in LEAVES.values() if "enum" in leaf.rules]


def nodes_of(node: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    yield node
    for child in node.get("properties", {}).values():
        yield from nodes_of(child)


def document_with(leaf: Leaf, value: object) -> str:
    document: dict[str, Any] = {}
    set_leaf(document, leaf.path, value)
    return json.dumps(document)


def the_problem(text: str) -> str:
    with pytest.raises(PolicyError) as caught:
        read_policy(text)
    assert len(caught.value.problems) == 1
    return str(caught.value.problems[0])


def test_schema_is_valid_json_schema() -> None:
    Draft202012Validator.check_schema(SCHEMA)


def test_no_object_takes_unknown_keys() -> None:
    objects = [node for node in nodes_of(SCHEMA) if node["type"] == "object"]
    assert objects
    assert all(node["additionalProperties"] is False for node in objects)


def test_every_node_is_described() -> None:
    assert all(node["description"].endswith(".") for node in nodes_of(SCHEMA))


def test_defaults_are_the_dataclasses_defaults() -> None:
    assert dict(leaf_values(document_of(DEFAULT_POLICY))) == {path: leaf.default for path, leaf in LEAVES.items()}


def test_every_rule_of_the_schema_has_words() -> None:
    used = {keyword for node in nodes_of(SCHEMA) for keyword in node} - ANNOTATION_WORDS
    assert used == set(_WORDS)


def test_every_fix_belongs_to_a_rule_of_its_key() -> None:
    for node in nodes_of(SCHEMA):
        assert set(node.get("x-fix", {})) <= set(node)


@pytest.mark.parametrize("leaf", BOUNDED, ids=lambda leaf: leaf.path)
def test_bounds_are_inclusive_and_explained(leaf: Leaf) -> None:
    for rule, step in (("minimum", -1), ("maximum", +1)):
        bound = leaf.rules[rule]
        document = json.loads(document_with(leaf, bound))
        assert problems_of(document) == ()
        problem = the_problem(document_with(leaf, bound + step))
        assert problem.startswith(f"{leaf.path}: {bound + step} is ")
        assert problem.endswith(f"; {leaf.rules['x-fix'][rule]}")


@pytest.mark.parametrize("leaf", CONSTANT, ids=lambda leaf: leaf.path)
def test_a_safety_critical_value_may_be_written_but_not_weakened(leaf: Leaf) -> None:
    assert read_policy(document_with(leaf, leaf.default)) == DEFAULT_POLICY
    weakened: object = (not leaf.default) if leaf.kind == "boolean" else "retry"
    problem = the_problem(document_with(leaf, weakened))
    assert problem.startswith(f"{leaf.path}: ")
    assert problem.endswith(leaf.rules["x-fix"]["const"])


@pytest.mark.parametrize("leaf", CHOSEN, ids=lambda leaf: leaf.path)
def test_only_known_words_are_chosen_from(leaf: Leaf) -> None:
    for word in leaf.rules["enum"]:
        policy = read_policy(document_with(leaf, word))
        assert dict(leaf_values(document_of(policy)))[leaf.path] == word
    assert the_problem(document_with(leaf, "sometimes")) == (
        f'{leaf.path}: "sometimes" is not known; write one of {", ".join(leaf.rules["enum"])}'
    )


@pytest.mark.parametrize("leaf", LEAVES.values(), ids=lambda leaf: leaf.path)
def test_a_value_of_another_kind_is_refused(leaf: Leaf) -> None:
    wrong: object = 1 if leaf.kind in ("string", "boolean", "array") else True
    assert the_problem(document_with(leaf, wrong)).startswith(f"{leaf.path}: {json.dumps(wrong)} is not ")


@pytest.mark.parametrize("require", [[], ["source_attempt_fenced"], ["retry_budget_available"]])
def test_neither_gate_can_be_left_out(require: list[str]) -> None:
    leaf = LEAVES["on_upstream_failure.before_first_delta.require"]
    assert the_problem(document_with(leaf, require)).endswith("a policy can't switch a gate off")


def test_both_gates_may_come_in_any_order() -> None:
    leaf = LEAVES["on_upstream_failure.before_first_delta.require"]
    assert read_policy(document_with(leaf, ["retry_budget_available", "source_attempt_fenced"])) == DEFAULT_POLICY
    assert "once each" in the_problem(document_with(leaf, ["source_attempt_fenced", "source_attempt_fenced"]))


def test_idle_limit_is_absent_or_longer_than_a_pause() -> None:
    leaf = LEAVES["deadlines.idle_ms"]
    assert read_policy(document_with(leaf, 1000)).deadlines.idle_ms == 1000
    assert the_problem(document_with(leaf, 999)).startswith("deadlines.idle_ms: 999 is refused; set 0 for no limit")


def test_a_mode_that_yaml_1_1_read_as_a_boolean_is_explained() -> None:
    assert "quoted" in the_problem("mode: false")


def test_problems_of_a_hostile_document_are_bounded() -> None:
    assert len(problems_of({f"key_{index}": 1 for index in range(1000)})) == PROBLEMS_MAX
