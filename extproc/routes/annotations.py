"""Annotations into a layer: one annotation for each key of the document, and one that holds a whole document.

Values are strings (Kubernetes allows nothing else) and are trimmed; then

- words and booleans are read as they stand, ``true`` and ``false`` in any case (CASES K8-01);
- numbers follow JSON's grammar, whole ones in exponent form included (CASES K8-02); ``0123``, ``1_000``, ``NaN`` and ``inf`` are
  refused (CASES K8-03). Times are plain milliseconds, as the ``-ms`` of their names says: ``5s`` is refused, since a
  name and a value that both carry a unit can contradict each other;
- lists are separated by commas.

``mode: observe`` is refused: watching is another filter in Envoy, which no annotation puts there, so the route would be let
through unwatched by a team that believes it is watched.

Everything else is a problem that carries the annotation's whole name. One problem refuses the object's annotations whole: the
policy below them stays as it was (an invalid annotation never weakens a policy).
"""

from collections.abc import Mapping
from typing import Final

from extproc.decision.policy import Mode
from extproc.routes.document import Document, Layer, layer_of, leaf_values, merge, read_layer, set_leaf
from extproc.routes.plain_tree import Tree, number_of
from extproc.routes.problems import PolicyError, Problem
from extproc.routes.schema import LEAVES, known_words

PREFIX: Final = "deltafence.io/"
"""On HTTPRoute, GRPCRoute and VirtualService objects."""
ENVOY_GATEWAY_PREFIX: Final = "gateway.envoyproxy.io/deltafence."
"""On HTTPRoute and GRPCRoute objects: Envoy Gateway copies annotations under ``gateway.envoyproxy.io/``, and only those, into the
route's metadata (gateway.envoyproxy.io/docs/tasks/observability/gateway-api-metadata)."""

DOCUMENT_KEY: Final = "policy"
"""``deltafence.io/policy`` holds a whole document; the object's other annotations are laid over it."""

NOT_BY_ANNOTATION: Final = "observe needs another filter in Envoy, which an annotation can't put there"
OBSERVE_FIX: Final = "write enforce or off; to watch, set policy.mode: observe in the chart's values (docs/observe.md)"

_SHORT_NAMES: Final = {"on_upstream_failure.before_first_delta.max_attempts": "max-attempts"}


def annotation_key(path: str) -> str:
    """The annotation's name below the prefix: the leaf's path in kebab-case, without ``on_upstream_failure``."""
    return _SHORT_NAMES.get(path) or path.removeprefix("on_upstream_failure.").replace(".", "-").replace("_", "-")


PATHS: Final[Mapping[str, str]] = {annotation_key(path): path for path in LEAVES}
"""Annotation key to the leaf path that it sets."""


def read_annotations(annotations: Mapping[str, str], *, source: str, prefix: str = PREFIX) -> Layer | None:
    """What the annotations that begin with ``prefix`` set, or None where there are none.

    ``source`` names the object (``HTTPRoute default/chat``). Raises PolicyError whose paths begin with annotation names.
    """
    ours = {name.removeprefix(prefix): value for name, value in annotations.items() if name.startswith(prefix)}
    if not ours:
        return None
    whole = ours.pop(DOCUMENT_KEY, None)
    base = None if whole is None else _read_whole_document(whole, name=prefix + DOCUMENT_KEY, source=source)
    document: Document = {}
    problems = []
    for key, value in ours.items():
        path = PATHS.get(key)
        if path is None:
            fix = known_words(key, [DOCUMENT_KEY, *PATHS])
            problems.append(Problem(path=prefix + key, problem="unknown annotation", fix=fix))
        else:
            set_leaf(document, path, value_of(value, kind=LEAVES[path].kind))
    try:
        layer_of(document, source=source)
    except PolicyError as error:
        problems += [_renamed(problem, prefix) for problem in error.problems]
    if problems:
        raise PolicyError(*problems)
    return _joined(base, document, source=source, prefix=prefix)


def _read_whole_document(text: str, *, name: str, source: str) -> Layer:
    if not text.strip():
        raise PolicyError(Problem(path=name, problem="is empty", fix="write a policy document, or remove the annotation"))
    try:
        return read_layer(text, source=source)
    except PolicyError as error:
        problems = [
            Problem(path=name, problem=f"{problem.path or 'document'}: {problem.problem}", fix=problem.fix)
            for problem in error.problems
        ]
        raise PolicyError(*problems) from error


def value_of(text: str, *, kind: str) -> Tree:
    """The value that an annotation means; where it means none of its kind the text itself, which the schema then refuses."""
    text = text.strip()
    match kind:
        case "boolean":
            return {"true": True, "false": False}.get(text.lower(), text)
        case "integer" | "number":
            number = number_of(text)
            return text if number is None else number
        case "array":
            return [word.strip() for word in text.split(",")]
        case _:
            return text


def _renamed(problem: Problem, prefix: str) -> Problem:
    path, bracket, index = problem.path.partition("[")
    return Problem(path=prefix + annotation_key(path) + bracket + index, problem=problem.problem, fix=problem.fix)


def _joined(base: Layer | None, document: Document, *, source: str, prefix: str) -> Layer:
    merged: Document = {}
    names: dict[str, str] = {}
    if base is not None:
        merge(merged, base.document)
        names |= {path: prefix + DOCUMENT_KEY for path, _ in leaf_values(base.document)}
    merge(merged, document)
    names |= {path: prefix + annotation_key(path) for path, _ in leaf_values(document)}
    if merged.get("mode") == Mode.OBSERVE:
        raise PolicyError(Problem(path=names["mode"], problem=NOT_BY_ANNOTATION, fix=OBSERVE_FIX))
    return Layer(source=source, document=merged, names=names)
