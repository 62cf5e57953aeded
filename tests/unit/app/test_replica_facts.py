"""--replica-facts: a typo must never pass for a declaration (R8)."""

import pytest

from extproc.app.addresses import ReplicaAddress
from extproc.app.replica_facts import read_replica_facts
from extproc.decision.identity import Facts

A, B = (ReplicaAddress.parse(f"http://10.0.0.{number}:8000") for number in (1, 2))


def test_each_replica_has_its_own_block() -> None:
    text = "http://10.0.0.1:8000: {revision: 3f1c, block-size: 16, adapters: 'sql, math'}\nhttp://10.0.0.2:8000: {revision: 7}\n"
    assert read_replica_facts(text, (A, B)) == {
        A: Facts(revision="3f1c", block_size=16, adapters=("sql", "math")),
        B: Facts(revision="7"),
    }


def test_json_is_read_as_well() -> None:
    assert read_replica_facts('{"http://10.0.0.1:8000": {"chat-template": "t"}}', (A,)) == {A: Facts(chat_template="t")}


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("[]", "a block for each replica"),
        ("http://10.0.0.3:8000: {revision: a}", "there is no such --replica"),
        ("10.0.0.1: {revision: a}", "10.0.0.1"),
        ("http://10.0.0.1:8000: 3f1c", "must be a block of facts"),
        ("http://10.0.0.1:8000: {revison: a}", "revison is not a fact; there are model, root, revision"),
        ("http://10.0.0.1:8000: {revision: [a]}", "revision must be text or a number"),
        ("http://10.0.0.1:8000: {revision: true}", "revision must be text or a number"),
        ("http://10.0.0.1:8000: {block-size: 0}", "block_size must be a whole number above 0"),
        ("{", "document"),
    ],
)
def test_anything_else_is_refused_with_its_reason(text: str, reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        read_replica_facts(text, (A, B))
