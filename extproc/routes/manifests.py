"""Policy documents and Kubernetes manifests checked before anything reads them, as a pipeline does.

Manifests are read as Kubernetes' own tools read them, that is by YAML 1.1, in which a bare ``off`` is no string; the API
refuses such an annotation, so the check does too.
"""

import warnings
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

from ruamel.yaml import YAML
from ruamel.yaml.error import YAMLError, YAMLWarning

from extproc.decision.policy import DEFAULT_POLICY, Policy
from extproc.routes.annotations import DOCUMENT_KEY, ENVOY_GATEWAY_PREFIX, PATHS, PREFIX, read_annotations
from extproc.routes.document import overlay, read_layer
from extproc.routes.problems import PolicyError, Problem, shown

ROUTE_KINDS: Final[Mapping[str, tuple[str, ...]]] = {
    "HTTPRoute": (PREFIX, ENVOY_GATEWAY_PREFIX),
    "GRPCRoute": (PREFIX, ENVOY_GATEWAY_PREFIX),
    "VirtualService": (PREFIX,),
}
"""Kinds whose annotations are read, and the prefixes that are read there."""
TEXT_CHARACTERS_MAX: Final = 16 * 1024 * 1024
"""A rendered chart of thousands of objects; the limit keeps a wrong file from filling memory."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One problem and the object that it is in."""

    subject: str
    """``HTTPRoute default/chat``, or ``policy`` for a policy document."""
    problem: Problem

    def __str__(self) -> str:
        return f"{self.subject}: {self.problem}"


@dataclass(frozen=True, slots=True, kw_only=True)
class LintResult:
    """What was checked, and what is wrong with it."""

    checked: tuple[str, ...]
    """Subjects that carry something of ours."""
    findings: tuple[Finding, ...]


def lint(text: str, *, base: Policy = DEFAULT_POLICY) -> LintResult:
    """Checks a policy document, or every route object in a stream of Kubernetes manifests, against ``base``."""
    if not text.strip():
        problem = Problem(path="", problem="is empty", fix="look whether what should have written it failed")
        return LintResult(checked=(), findings=(Finding(subject="input", problem=problem),))
    try:
        manifests = _manifests(text)
    except PolicyError as error:
        return LintResult(checked=(), findings=_findings("manifests", error))
    if manifests is None:
        return _lint_document(text, base)
    checked: list[str] = []
    findings: list[Finding] = []
    for manifest in manifests:
        subject = _subject(manifest)
        findings += _mistaken_labels(subject, manifest)
        annotations = _strings(manifest, "annotations")
        if any(name.startswith((PREFIX, ENVOY_GATEWAY_PREFIX)) for name in annotations):
            checked.append(subject)
            findings += _lint_object(str(manifest["kind"]), subject, annotations, base)
    return LintResult(checked=tuple(checked), findings=tuple(findings))


def _lint_document(text: str, base: Policy) -> LintResult:
    try:
        overlay(base, read_layer(text, source="policy"))
    except PolicyError as error:
        return LintResult(checked=("policy",), findings=_findings("policy", error))
    return LintResult(checked=("policy",), findings=())


def _findings(subject: str, error: PolicyError) -> tuple[Finding, ...]:
    return tuple(Finding(subject=subject, problem=problem) for problem in error.problems)


def _manifests(text: str) -> list[dict[str, Any]] | None:
    """The objects of a manifest stream, lists unpacked; None where the text is no such stream. Raises PolicyError."""
    if len(text) > TEXT_CHARACTERS_MAX:
        raise PolicyError(Problem(path="", problem=f"{len(text)} characters of text", fix="lint fewer objects at once"))
    yaml = YAML(typ="safe", pure=True)
    yaml.version = (1, 1)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", YAMLWarning)  # of numbers that the two versions of YAML write differently
            documents = [document for document in yaml.load_all(text) if document is not None]
    except (YAMLError, ValueError, IndexError, RecursionError) as error:
        if "apiVersion" not in text:
            return None
        raise PolicyError(Problem(path="", problem=f"not YAML: {shown(str(error))}", fix="mend the text")) from error
    objects = list(_objects(documents))
    return objects or None


def _objects(documents: list[Any]) -> Iterator[dict[str, Any]]:
    for document in documents:
        if isinstance(document, dict) and "apiVersion" in document and "kind" in document:
            items = document.get("items")
            if isinstance(items, list):
                yield from _objects(items)
            else:
                yield document


def _metadata(manifest: dict[str, Any]) -> dict[str, Any]:
    metadata = manifest.get("metadata")
    return metadata if isinstance(metadata, dict) else {}


def _subject(manifest: dict[str, Any]) -> str:
    metadata = _metadata(manifest)
    name = str(metadata.get("name"))
    namespace = metadata.get("namespace")
    return f"{manifest['kind']} {f'{namespace}/{name}' if namespace else name}"


def _strings(manifest: dict[str, Any], key: str) -> dict[str, object]:
    """The object's annotations or labels; what should be a string may be anything here."""
    values = _metadata(manifest).get(key)
    return {str(name): value for name, value in values.items()} if isinstance(values, dict) else {}


def _is_policy_key(name: str, prefix: str) -> bool:
    return name.startswith(prefix) and name.removeprefix(prefix) in (DOCUMENT_KEY, *PATHS)


def _mistaken_labels(subject: str, manifest: dict[str, Any]) -> Iterator[Finding]:
    for name in _strings(manifest, "labels"):
        if _is_policy_key(name, PREFIX):
            problem = Problem(path=name, problem="is a label, which nobody reads", fix="write it as an annotation")
            yield Finding(subject=subject, problem=problem)


def _lint_object(kind: str, subject: str, annotations: dict[str, object], base: Policy) -> Iterator[Finding]:
    read_prefixes = ROUTE_KINDS.get(kind, ())
    strings: dict[str, str] = {}
    for name, value in annotations.items():
        prefix = next((prefix for prefix in (PREFIX, ENVOY_GATEWAY_PREFIX) if name.startswith(prefix)), None)
        if prefix is None:
            continue
        if prefix not in read_prefixes:
            if _is_policy_key(name, prefix):
                yield Finding(subject=subject, problem=_misplaced(name, kind, prefix))
        elif isinstance(value, str):
            strings[name] = value
        else:
            problem = f"{shown(value)} is not a string, and the Kubernetes API refuses it"
            yield Finding(subject=subject, problem=Problem(path=name, problem=problem, fix=f'quote it: {name}: "..."'))
    for prefix in read_prefixes:
        try:
            layer = read_annotations(strings, source=subject, prefix=prefix)
            if layer is not None:
                overlay(base, layer)
        except PolicyError as error:
            yield from _findings(subject, error)


def _misplaced(name: str, kind: str, prefix: str) -> Problem:
    kinds = [route_kind for route_kind, prefixes in ROUTE_KINDS.items() if prefix in prefixes]
    return Problem(path=name, problem=f"has no effect on objects of kind {kind}", fix=f"put it on the route: {', '.join(kinds)}")
