"""``--replica-facts FILE``: what an operator says of replicas that no pod's labels speak for (R8).

YAML or JSON, a block for each ``--replica`` by its URL, with the facts by the names of their labels::

    http://10.0.0.5:8000: {revision: 3f1c9a, tokenizer: llama-3, adapters: "sql,math"}
"""

from collections.abc import Collection, Mapping
from dataclasses import fields
from typing import Final

from extproc.app.addresses import ReplicaAddress
from extproc.decision.identity import LABEL_PREFIX, Facts, read_declared
from extproc.routes.plain_tree import Tree, read_tree
from extproc.routes.problems import PolicyError

NAMES: Final = tuple(field.name.replace("_", "-") for field in fields(Facts))


def read_replica_facts(text: str, replicas: Collection[ReplicaAddress]) -> Mapping[ReplicaAddress, Facts]:
    """The facts of each replica that the document names. Raises ValueError with the reason."""
    try:
        document = read_tree(text)
    except PolicyError as error:
        raise ValueError(str(error)) from error
    if not isinstance(document, dict):
        raise ValueError("the document must have a block for each replica, by its URL")
    return {_known(url, replicas): _facts_of(url, block) for url, block in document.items()}


def _known(url: str, replicas: Collection[ReplicaAddress]) -> ReplicaAddress:
    replica = ReplicaAddress.parse(url)
    if replica not in replicas:
        raise ValueError(f"{url}: there is no such --replica")
    return replica


def _facts_of(url: str, block: Tree) -> Facts:
    if not isinstance(block, dict):
        raise ValueError(f"{url}: must be a block of facts, not {block!r}")
    for name, value in block.items():
        if name not in NAMES:
            raise ValueError(f"{url}: {name} is not a fact; there are {', '.join(NAMES)}")
        if not isinstance(value, str | int | float) or isinstance(value, bool):
            raise ValueError(f"{url}: {name} must be text or a number, not {value!r}")
    try:
        return read_declared({LABEL_PREFIX + name: str(value) for name, value in block.items()})
    except ValueError as error:
        raise ValueError(f"{url}: {error}") from error
