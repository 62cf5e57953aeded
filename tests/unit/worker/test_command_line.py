"""What a guard tells of the server that it runs in: facts of the model, and never the rest of the command line."""

import pytest

from extproc.decision.identity import Facts, read_told
from extproc.worker.command_line import facts_told

FLAGS = ["/models/llama", "--served-model-name", "llama", "--revision", "3f1c", "--api-key", "sk-secret", "-tp", "4"]


@pytest.mark.parametrize(
    "command", [["/venv/bin/vllm", "serve", *FLAGS], ["/lib/vllm/entrypoints/openai/api_server.py", "--model", *FLAGS]]
)
def test_model_facts_are_told_and_keys_are_not(command: list[str]) -> None:
    told = facts_told(command)
    assert told == {"model": "llama", "root": "/models/llama", "revision": "3f1c", "tensor_parallel_size": 4}


@pytest.mark.parametrize("command", [[], ["uvicorn", "app:app"], ["vllm", "bench", "serve"], ["vllm", "serve"]])
def test_another_program_tells_nothing(command: list[str]) -> None:
    assert facts_told(command) == {}


def test_flags_that_make_no_sense_tell_nothing(caplog: pytest.LogCaptureFixture) -> None:
    assert facts_told(["vllm", "serve", "m", "-tp", "four"]) == {}
    assert "tensor_parallel_size" in caplog.text


def test_what_is_told_is_read_back() -> None:
    command = ["vllm", "serve", "m", "--lora-modules", "sql=/a/1", "math=/a/2", "--block-size", "16"]
    assert read_told(facts_told(command)) == Facts(model="m", root="m", adapters=("sql=/a/1", "math=/a/2"), block_size=16)


@pytest.mark.parametrize("document", [None, [], "facts", {"block_size": "many"}])
def test_what_is_no_fact_is_an_error(document: object) -> None:
    with pytest.raises(ValueError, match=r"facts|block_size"):
        read_told(document)


def test_a_newer_guards_facts_are_passed_over() -> None:
    assert read_told({"model": "m", "colour": "blue", "revision": None}) == Facts(model="m")
