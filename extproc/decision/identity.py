"""What must be equal for a repeat, and what must be equal for its prefix to be found in another replica's cache (R8).

**Identity**: model, where its weights came from, their revision, tokenizer, chat template, adapters and their order. A repeat
goes only to a replica of the same identity, for its answer must be one that the first replica could have given.

**Fingerprint**: the identity, and everything that decides what lies in the KV cache: quantization, attention, KV dtype,
parallelism and block layout. Only between equal fingerprints may the estimate of a repeat's cost count on a prefix cache; a
prefix cache shortens a repeat, it moves nothing.

Facts come from three places, which may each know some of them: what the operator declares (labels or annotations
``deltafence.io/…``, or a file), the server's flags (its guard reads them), and what the server shows (``/v1/models``,
``vllm:cache_config_info``). Two that disagree are an error, never a choice. A fact that nobody knows is ``None``: for an
identity None equals None, since what nobody tells of either can't be told apart; a fingerprint with a None equals nothing.
A replica of which nothing at all could be learnt has no identity, and equals none (docs/identity.md).
"""

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Final

LABEL_PREFIX: Final = "deltafence.io/"


class ConflictingFactsError(Exception):
    """Two sources say different things about one replica; the message names the fact and both values."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """What is known of one replica's model. Every field is None where it is not known."""

    model: str | None = None
    """The name that clients ask for."""
    root: str | None = None
    """Where the weights were loaded from: a path, or a name in a model hub."""
    revision: str | None = None
    """Of the weights there: a commit, a tag, or any name that changes when they do."""
    tokenizer: str | None = None
    chat_template: str | None = None
    adapters: tuple[str, ...] | None = None
    """LoRA adapters in the order in which they are loaded, as ``name`` or, where it is known, ``name=source``."""
    quantization: str | None = None
    attention: str | None = None
    dtype: str | None = None
    kv_cache_dtype: str | None = None
    tensor_parallel_size: int | None = None
    pipeline_parallel_size: int | None = None
    block_size: int | None = None
    """Tokens per block of the KV cache."""

    def merged(self, other: "Facts") -> "Facts":
        """Both sources' facts together; raises ConflictingFactsError."""
        values = {}
        for field in fields(self):
            mine, theirs = getattr(self, field.name), getattr(other, field.name)
            if mine is None or theirs is None:
                values[field.name] = theirs if mine is None else mine
            elif mine == theirs:
                values[field.name] = mine
            elif field.name == "adapters" and (joined := _joined_adapters(mine, theirs)) is not None:
                values[field.name] = joined
            else:
                raise ConflictingFactsError(f"{field.name} is {mine!r} by one source and {theirs!r} by another")
        return Facts(**values)

    def filled(self, other: "Facts") -> "Facts":
        """These facts, and the other's where these know none."""
        mine = {field.name: value for field in fields(self) if (value := getattr(self, field.name)) is not None}
        return replace(other, **mine)

    @property
    def identity(self) -> "Identity":
        """The part that a repeat asks for."""
        return Identity(**{field.name: getattr(self, field.name) for field in fields(Identity)})

    @property
    def fingerprint(self) -> "Fingerprint":
        """The part that a prefix cache asks for."""
        rest = {field.name: getattr(self, field.name) for field in fields(Fingerprint) if field.name != "identity"}
        return Fingerprint(identity=self.identity, **rest)


@dataclass(frozen=True, slots=True, kw_only=True)
class Identity:
    """Equal identities may repeat one another's requests."""

    model: str | None
    root: str | None
    revision: str | None
    tokenizer: str | None
    chat_template: str | None
    adapters: tuple[str, ...] | None

    @property
    def key(self) -> str:
        """The identity as one string for journals and rosters: equal where identities are, and empty where nothing is known."""
        known = {field.name: getattr(self, field.name) for field in fields(self) if getattr(self, field.name) is not None}
        return json.dumps(known, separators=(",", ":"), ensure_ascii=False) if known else ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Fingerprint:
    """Replicas of equal, fully known fingerprints fill their KV caches alike."""

    identity: Identity
    quantization: str | None
    attention: str | None
    dtype: str | None
    kv_cache_dtype: str | None
    tensor_parallel_size: int | None
    pipeline_parallel_size: int | None
    block_size: int | None

    @property
    def unknown(self) -> tuple[str, ...]:
        """The facts that nobody has told; while there are any, no cache is counted on."""
        own = [field.name for field in fields(self) if getattr(self, field.name) is None]
        return (*(field.name for field in fields(Identity) if getattr(self.identity, field.name) is None), *own)

    def may_share_prefixes(self, other: "Fingerprint") -> bool:
        """Whether a prefix that one of the two has computed may be assumed in a cache that the other can use."""
        return self == other and not self.unknown


def read_declared(labels: Mapping[str, str]) -> Facts:
    """Facts from labels or annotations ``deltafence.io/<fact>``, such as ``deltafence.io/kv-cache-dtype``. Raises ValueError.

    Adapters are separated by commas, in order; an empty value says that there are none. Keys of other tools and other settings
    of ours are passed over.
    """
    given = {field.name: labels[key].strip() for field in fields(Facts) if (key := _label_of(field.name)) in labels}
    return _facts_from_text(given)


def read_flags(arguments: Sequence[str]) -> Facts:
    """Facts from a ``vllm serve`` command line, after the word ``serve``. Raises ValueError.

    What is not on it is not known: a default belongs to a version of vLLM, and this does not guess which one runs.
    """
    given: dict[str, str] = {}
    adapters: list[str] = []
    flag = ""
    for argument in arguments:
        if argument.startswith("-") and not argument.startswith("{"):
            flag, has_value, value = _split_flag(argument)
            if not has_value:
                continue
        else:
            value = argument
        if not flag:
            given.setdefault("root", value)
        elif flag == "--lora-modules":
            adapters.append(_adapter_of(value))
        elif flag in FLAGS:
            given.setdefault(FLAGS[flag], value)
    if "root" in given:
        given.setdefault("model", given["root"])
    facts = _facts_from_text(given)
    return facts.merged(Facts(adapters=tuple(adapters))) if adapters else facts


def read_models(document: object) -> Facts:
    """Facts from the JSON of ``/v1/models``: name and root of the base model, and the adapters loaded on it. Raises ValueError.

    Adapters are the cards with a parent. More than one base card is several names of one model (``--served-model-name a b``); the
    first is its main one.
    """
    cards = document.get("data") if isinstance(document, dict) else None
    if not isinstance(cards, list) or not all(isinstance(card, dict) and isinstance(card.get("id"), str) for card in cards):
        raise ValueError("not a list of models")
    bases = [card for card in cards if card.get("parent") is None]
    if not bases:
        raise ValueError("no model in the list")
    root = bases[0].get("root")
    return Facts(
        model=bases[0]["id"],
        root=root if isinstance(root, str) else None,
        adapters=tuple(_shown_adapter(card) for card in cards if card.get("parent") is not None),
    )


def read_cache_config(page: str) -> Facts:
    """Facts from the ``vllm:cache_config_info`` series of a metrics page; nothing where it has none. Raises ValueError."""
    series = _CACHE_CONFIG.search(page)
    if series is None:
        return Facts()
    labels: dict[str, str] = dict(_LABEL.findall(series[1]))
    shown = {"block_size": "block_size", "cache_dtype": "kv_cache_dtype"}
    return _facts_from_text({fact: labels[label] for label, fact in shown.items() if labels.get(label, "None") != "None"})


def read_told(document: object) -> Facts:
    """Facts from JSON by their names, as a guard tells them; names that are not known here are passed over. Raises ValueError."""
    if not isinstance(document, dict):
        raise ValueError("facts must be an object")
    given = {field.name: document[field.name] for field in fields(Facts) if document.get(field.name) is not None}
    return _facts_from_text({name: ",".join(value) if isinstance(value, list) else str(value) for name, value in given.items()})


FLAGS: Final = {
    "--model": "root",
    "--served-model-name": "model",
    "--revision": "revision",
    "--tokenizer": "tokenizer",
    "--chat-template": "chat_template",
    "--quantization": "quantization",
    "-q": "quantization",
    "--attention-backend": "attention",
    "--dtype": "dtype",
    "--kv-cache-dtype": "kv_cache_dtype",
    "--tensor-parallel-size": "tensor_parallel_size",
    "-tp": "tensor_parallel_size",
    "--pipeline-parallel-size": "pipeline_parallel_size",
    "-pp": "pipeline_parallel_size",
    "--block-size": "block_size",
}
"""vLLM's flags (0.32) and the facts that they set; ``_`` may stand for ``-``, as vLLM allows."""

_CACHE_CONFIG: Final = re.compile(r"^vllm:cache_config_info\{([^\n]*)\} ", re.MULTILINE)
_LABEL: Final = re.compile(r'([a-zA-Z_]\w*)="((?:[^"\\]|\\.)*)"')


def _label_of(fact: str) -> str:
    return LABEL_PREFIX + fact.replace("_", "-")


def _split_flag(argument: str) -> tuple[str, bool, str]:
    flag, has_value, value = argument.partition("=")
    return flag.replace("_", "-"), bool(has_value), value


def _adapter_of(text: str) -> str:
    """``name=path``, or the JSON form ``{"name": …, "path": …}`` of vLLM."""
    if not text.startswith("{"):
        return text
    module = json.loads(text)
    return f"{module['name']}={module['path']}" if {"name", "path"} <= module.keys() else str(module.get("name"))


def _shown_adapter(card: Mapping[str, object]) -> str:
    root = card.get("root")
    return f"{card['id']}={root}" if isinstance(root, str) else str(card["id"])


def _joined_adapters(mine: tuple[str, ...], theirs: tuple[str, ...]) -> tuple[str, ...] | None:
    """The same names in the same order, of which one side knows no sources; None where the two disagree."""
    if len(mine) != len(theirs):
        return None
    pairs = [sorted(pair, key=len) for pair in zip(mine, theirs, strict=True)]
    agree = all(longer == shorter or longer.partition("=")[0] == shorter for shorter, longer in pairs)
    return tuple(longer for _, longer in pairs) if agree else None


def _facts_from_text(given: Mapping[str, str]) -> Facts:
    facts = Facts()
    for name, text in given.items():
        facts = facts.merged(_READERS[name](text))
    return facts


def _number(name: str, text: str) -> int:
    if not re.fullmatch(r"[1-9][0-9]{0,5}", text):
        raise ValueError(f"{name} must be a whole number above 0, not {text!r}")
    return int(text)


_READERS: Final[dict[str, Callable[[str], Facts]]] = {
    "model": lambda text: Facts(model=text),
    "root": lambda text: Facts(root=text),
    "revision": lambda text: Facts(revision=text),
    "tokenizer": lambda text: Facts(tokenizer=text),
    "chat_template": lambda text: Facts(chat_template=text),
    "adapters": lambda text: Facts(adapters=tuple(part.strip() for part in text.split(",") if part.strip())),
    "quantization": lambda text: Facts(quantization=text),
    "attention": lambda text: Facts(attention=text),
    "dtype": lambda text: Facts(dtype=text),
    "kv_cache_dtype": lambda text: Facts(kv_cache_dtype=text),
    "tensor_parallel_size": lambda text: Facts(tensor_parallel_size=_number("tensor_parallel_size", text)),
    "pipeline_parallel_size": lambda text: Facts(pipeline_parallel_size=_number("pipeline_parallel_size", text)),
    "block_size": lambda text: Facts(block_size=_number("block_size", text)),
}
