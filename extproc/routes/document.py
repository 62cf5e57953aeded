"""Policy documents in the vocabulary of R14: text into a layer, a layer over a policy.

A **layer** is what one source sets: a validated tree of some of the document's keys. Laid over a base policy it gives a
policy whose other values are the base's; a layer that is refused in any part is refused whole, so that half of what its author
meant is never in force, and the base stays as it was.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from extproc.decision.policy import (
    DEFAULT_POLICY,
    DeadlinesPolicy,
    JournalPolicy,
    KeepAlivePolicy,
    LeasePolicy,
    Mode,
    Policy,
    ReplayCostPolicy,
    RetryBudgetPolicy,
    ToolsMode,
)
from extproc.routes.plain_tree import read_tree
from extproc.routes.problems import PolicyError, Problem, child_path
from extproc.routes.schema import LEAVES, problems_of

Document = dict[str, Any]
"""A tree whose keys and values the schema allows."""

RETRY_ACTION: Final = "retry_prefill_on_healthy_replica"
FAIL_ACTION: Final = "fail"


@dataclass(frozen=True, slots=True, kw_only=True)
class Layer:
    """What one source sets, checked against the schema but not yet against a base."""

    source: str
    """Where it came from, in words for people."""
    document: Document
    names: Mapping[str, str] = field(default_factory=dict)
    """Leaf path to the annotation that sets it, where annotations do."""

    def origin(self, path: str) -> str:
        """Where the value at a leaf path came from, in words for people."""
        return f"annotation {self.names[path]} of {self.source}" if path in self.names else self.source


def read_layer(text: str, *, source: str) -> Layer:
    """A document's text as a layer. Raises PolicyError with every problem found."""
    return layer_of(read_tree(text), source=source)


def layer_of(tree: object, *, source: str) -> Layer:
    """A plain tree as a layer; None (an empty text) sets nothing. Raises PolicyError."""
    document = {} if tree is None else tree
    problems = problems_of(document)
    if problems:
        raise PolicyError(*problems)
    assert isinstance(document, dict)
    return Layer(source=source, document=document)


def overlay(base: Policy, layer: Layer) -> Policy:
    """``base`` with the layer's values in place of its own. Raises PolicyError where the two together make no sense."""
    merged = document_of(base)
    merge(merged, layer.document)
    _check_relations(merged, layer)
    return _policy_of(merged)


def read_policy(text: str, *, base: Policy = DEFAULT_POLICY, source: str = "document") -> Policy:
    """A document's text laid over ``base``. Raises PolicyError."""
    return overlay(base, read_layer(text, source=source))


def document_of(policy: Policy) -> Document:
    """The complete document that says ``policy``, every key of the schema included."""
    document: Document = {}
    for path, leaf in LEAVES.items():
        set_leaf(document, path, leaf.default)
    before_first_delta = document["on_upstream_failure"]["before_first_delta"]
    before_first_delta["action"] = RETRY_ACTION if policy.retry_before_first_delta else FAIL_ACTION
    before_first_delta["max_attempts"] = policy.max_attempts
    document["mode"] = str(policy.mode)
    document["tools"] = str(policy.tools)
    for section in _SECTIONS:
        values = getattr(policy, section)
        document[section] = {key: getattr(values, key) for key in document[section]}
    return document


_SECTIONS: Final = ("retry_budget", "replay_cost", "lease", "deadlines", "keep_alive", "journal")
"""Sections whose keys are the fields of the policy's dataclass of the same name."""


def _policy_of(document: Document) -> Policy:
    before_first_delta = document["on_upstream_failure"]["before_first_delta"]
    return Policy(
        mode=Mode(document["mode"]),
        retry_before_first_delta=before_first_delta["action"] == RETRY_ACTION,
        max_attempts=before_first_delta["max_attempts"],
        retry_budget=RetryBudgetPolicy(**document["retry_budget"]),
        replay_cost=ReplayCostPolicy(**document["replay_cost"]),
        lease=LeasePolicy(**document["lease"]),
        tools=ToolsMode(document["tools"]),
        deadlines=DeadlinesPolicy(**document["deadlines"]),
        keep_alive=KeepAlivePolicy(**document["keep_alive"]),
        journal=JournalPolicy(**document["journal"]),
    )


def leaf_values(document: Document) -> Iterator[tuple[str, Any]]:
    """Path and value of every leaf that a document sets, in its order."""

    def walk(node: Document, path: str) -> Iterator[tuple[str, Any]]:
        for key, value in node.items():
            key_path = child_path(path, key)
            if key_path in LEAVES:
                yield key_path, value
            else:
                yield from walk(value, key_path)

    return walk(document, "")


def merge(target: Document, source: Document) -> None:
    """Sets in ``target`` what ``source`` sets."""
    for path, value in leaf_values(source):
        set_leaf(target, path, value)


def set_leaf(document: Document, path: str, value: object) -> None:
    """Sets the value at a leaf path, making the sections on the way."""
    *sections, key = path.split(".")
    for section in sections:
        document = document.setdefault(section, {})
    document[key] = value


@dataclass(frozen=True, slots=True, kw_only=True)
class Relation:
    """``lower`` may not exceed ``upper``; the same relations are asserted in decision/policy.py."""

    lower: str
    upper: str
    fix: str


RELATIONS: Final = (
    Relation(
        lower="lease.cancel_timeout_ms",
        upper="lease.ttl_ms",
        fix="lower lease.cancel_timeout_ms or raise lease.ttl_ms: the lease's end is a fence anyway",
    ),
    Relation(
        lower="deadlines.first_delta_ms",
        upper="deadlines.total_ms",
        fix="lower deadlines.first_delta_ms or raise deadlines.total_ms: the first delta is part of the answer",
    ),
    Relation(
        lower="keep_alive.after_ms",
        upper="deadlines.first_delta_ms",
        fix="lower keep_alive.after_ms, or set 0 to switch keep-alive off: after the deadline nothing is left to keep alive",
    ),
)


def _check_relations(merged: Document, layer: Layer) -> None:
    values = dict(leaf_values(merged))
    named = dict(leaf_values(layer.document))
    problems = []
    for relation in RELATIONS:
        lower, upper = values[relation.lower], values[relation.upper]
        if lower > upper:
            path = relation.upper if relation.lower not in named else relation.lower
            problem = f"{relation.lower} {lower} exceeds {relation.upper} {upper}"
            problems.append(Problem(path=layer.names.get(path, path), problem=problem, fix=relation.fix))
    if problems:
        raise PolicyError(*problems)
