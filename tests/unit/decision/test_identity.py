"""What is read of a replica's model, when two sources disagree, and what equality then allows (R8)."""

from dataclasses import fields, replace

import pytest

from extproc.decision.identity import (
    ConflictingFactsError,
    Facts,
    read_cache_config,
    read_declared,
    read_flags,
    read_models,
)

WHOLE = Facts(
    model="llama",
    root="/models/llama",
    revision="3f1c",
    tokenizer="llama",
    chat_template="sha256-77",
    adapters=("sql=/a/1", "math=/a/2"),
    quantization="fp8",
    attention="FLASH_ATTN",
    dtype="bfloat16",
    kv_cache_dtype="fp8",
    tensor_parallel_size=4,
    pipeline_parallel_size=1,
    block_size=16,
)
IDENTITY_FACTS = ("model", "root", "revision", "tokenizer", "chat_template", "adapters")
OTHER = {"adapters": ("math=/a/2", "sql=/a/1"), "tensor_parallel_size": 2, "pipeline_parallel_size": 2, "block_size": 32}


@pytest.mark.parametrize("fact", [field.name for field in fields(Facts)])
def test_any_other_fact_is_another_fingerprint_and_some_are_another_identity(fact: str) -> None:
    other = replace(WHOLE, **{fact: OTHER.get(fact, "other")})
    assert not WHOLE.fingerprint.may_share_prefixes(other.fingerprint)
    assert (WHOLE.identity == other.identity) == (fact not in IDENTITY_FACTS)
    assert (WHOLE.identity.key == other.identity.key) == (fact not in IDENTITY_FACTS)


def test_equal_and_whole_fingerprints_share_prefixes() -> None:
    assert WHOLE.fingerprint.may_share_prefixes(replace(WHOLE).fingerprint)


@pytest.mark.parametrize("fact", [field.name for field in fields(Facts)])
def test_fingerprint_with_an_unknown_fact_shares_nothing(fact: str) -> None:
    partial = replace(WHOLE, **{fact: None}).fingerprint
    assert partial.unknown == (fact,)
    assert not partial.may_share_prefixes(partial)


def test_what_is_declared_nowhere_does_not_part_identities() -> None:
    assert Facts().identity == Facts().identity
    assert Facts().identity.key == ""
    assert Facts(model="m").identity != Facts(model="m", revision="a").identity


class TestMerging:
    def test_sources_complete_each_other(self) -> None:
        assert Facts(model="m").merged(Facts(revision="a")) == Facts(model="m", revision="a")

    def test_sources_that_disagree_are_an_error_that_names_both(self) -> None:
        with pytest.raises(ConflictingFactsError, match="revision is 'a' by one source and 'b' by another"):
            Facts(revision="a").merged(Facts(revision="b"))

    def test_sources_that_agree_are_one(self) -> None:
        assert WHOLE.merged(WHOLE) == WHOLE

    def test_adapters_named_by_one_source_and_located_by_another_agree(self) -> None:
        names, located = Facts(adapters=("sql", "math")), Facts(adapters=("sql=/a/1", "math=/a/2"))
        assert names.merged(located) == located.merged(names) == located

    @pytest.mark.parametrize("other", [("math", "sql"), ("sql",), ("sql", "maths"), ("sql=/a/9", "math=/a/2"), ()])
    def test_adapters_in_another_order_number_or_place_disagree(self, other: tuple[str, ...]) -> None:
        with pytest.raises(ConflictingFactsError, match="adapters"):
            Facts(adapters=("sql=/a/1", "math=/a/2")).merged(Facts(adapters=other))


def test_gaps_are_filled_and_nothing_else() -> None:
    assert Facts(model="shown").filled(Facts(model="asked for", revision="a")) == Facts(model="shown", revision="a")
    assert Facts(adapters=()).filled(Facts(adapters=("sql",))) == Facts(adapters=())


class TestDeclared:
    def test_every_fact_has_its_label(self) -> None:
        labels = {f"deltafence.io/{field.name.replace('_', '-')}": str(getattr(WHOLE, field.name)) for field in fields(Facts)}
        labels["deltafence.io/adapters"] = "sql=/a/1, math=/a/2"
        assert read_declared(labels) == WHOLE

    def test_other_labels_are_passed_over(self) -> None:
        assert read_declared({"app": "vllm", "deltafence.io/mode": "enforce"}) == Facts()

    def test_empty_list_of_adapters_says_that_there_are_none(self) -> None:
        assert read_declared({"deltafence.io/adapters": ""}) == Facts(adapters=())

    @pytest.mark.parametrize("text", ["0", "-1", "1.0", "1e3", "two", "", "1_6"])
    def test_number_that_is_none_is_an_error(self, text: str) -> None:
        with pytest.raises(ValueError, match="block_size"):
            read_declared({"deltafence.io/block-size": text})


class TestFlags:
    def test_both_spellings_and_both_forms(self) -> None:
        arguments = [
            *("/models/llama", "--served-model-name=llama", "--revision", "3f1c", "--tensor_parallel_size=4", "-q", "fp8"),
            *("--enforce-eager", "--kv-cache-dtype", "fp8", "--block-size", "16", "--max-model-len", "8192"),
        ]
        assert read_flags(arguments) == Facts(
            model="llama",
            root="/models/llama",
            revision="3f1c",
            quantization="fp8",
            kv_cache_dtype="fp8",
            tensor_parallel_size=4,
            block_size=16,
        )

    @pytest.mark.parametrize(
        "arguments", [["/models/llama"], ["--model", "/models/llama"], ["--port", "1", "--model=/models/llama"]]
    )
    def test_model_without_a_served_name_is_its_path(self, arguments: list[str]) -> None:
        assert read_flags(arguments) == Facts(model="/models/llama", root="/models/llama")

    def test_first_of_several_served_names_is_the_models(self) -> None:
        assert read_flags(["/m", "--served-model-name", "main", "alias"]).model == "main"

    def test_adapters_in_both_forms_keep_their_order(self) -> None:
        arguments = ["--lora-modules", "sql=/a/1", '{"name": "math", "path": "/a/2", "base_model_name": "llama"}']
        assert read_flags(arguments).adapters == ("sql=/a/1", "math=/a/2")

    def test_adapter_that_is_none_is_an_error(self) -> None:
        with pytest.raises(ValueError, match="Expecting"):
            read_flags(["--lora-modules", "{broken"])

    def test_anything_but_an_adapter_in_braces_is_an_error(self) -> None:
        with pytest.raises(ValueError, match="Extra data"):
            read_flags(["--lora-modules", "{}{}"])

    def test_nothing_is_guessed(self) -> None:
        assert read_flags([]) == Facts()


class TestModels:
    def test_base_and_adapters_in_order(self) -> None:
        document = {
            "object": "list",
            "data": [
                {"id": "llama", "root": "/models/llama", "parent": None, "max_model_len": 8192},
                {"id": "sql", "root": "/a/1", "parent": "llama"},
                {"id": "math", "root": None, "parent": "llama"},
            ],
        }
        assert read_models(document) == Facts(model="llama", root="/models/llama", adapters=("sql=/a/1", "math"))

    def test_several_names_of_one_model(self) -> None:
        document = {"data": [{"id": "main", "parent": None}, {"id": "alias"}]}
        assert read_models(document) == Facts(model="main", adapters=())

    @pytest.mark.parametrize(
        "document", [None, [], {}, {"data": {}}, {"data": []}, {"data": [{"parent": None}]}, {"data": ["m"]}]
    )
    def test_anything_else_is_an_error(self, document: object) -> None:
        with pytest.raises(ValueError, match="model"):
            read_models(document)


class TestCacheConfig:
    PAGE = (
        "# TYPE vllm:cache_config_info gauge\n"
        'vllm:cache_config_info{block_size="16",cache_dtype="fp8",enable_prefix_caching="True",'
        'note="a \\"quoted\\" block_size=\\"9\\"",engine="0"} 1.0\n'
    )

    def test_block_size_and_dtype_are_shown(self) -> None:
        assert read_cache_config(self.PAGE) == Facts(block_size=16, kv_cache_dtype="fp8")

    def test_value_that_python_left_empty_is_not_known(self) -> None:
        assert read_cache_config('vllm:cache_config_info{block_size="None",cache_dtype="auto"} 1.0\n') == Facts(
            kv_cache_dtype="auto"
        )

    @pytest.mark.parametrize("page", ["", "vllm:num_requests_running 1.0\n", "# vllm:cache_config_info{} 1\n"])
    def test_page_without_it_tells_nothing(self, page: str) -> None:
        assert read_cache_config(page) == Facts()
