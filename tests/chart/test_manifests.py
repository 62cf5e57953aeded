"""The vLLM example and the Containerfiles: valid, restricted, and right about time (CASES K8-04, K8-05, K8-07)."""

import subprocess
from typing import Any

import pytest
from ruamel.yaml import YAML

from extproc.decision.identity import read_declared
from extproc.worker.probe import parse_arguments
from tests.chart.rendering import ROOT, TOOLS, Object, containers
from tests.chart.validation import problems_of

IMAGES = ROOT / "deploy" / "k8s" / "images"
VLLM = [found for found in YAML(typ="safe").load_all(ROOT / "deploy" / "k8s" / "vllm" / "vllm.yaml") if found]


def one(kind: str) -> Object:
    (found,) = [found for found in VLLM if found["kind"] == kind]
    return dict(found)


@pytest.fixture
def pod() -> Object:
    return dict(one("Deployment")["spec"]["template"]["spec"])


@pytest.fixture
def server(pod: Object) -> Object:
    return next(container for container in pod["containers"] if container["name"] == "vllm")


def arguments(server: Object) -> dict[str, str]:
    return dict(word.removeprefix("--").split("=", 1) for word in server["args"] if word.startswith("--"))


def test_every_object_is_what_its_api_server_takes() -> None:
    assert [problem for found in VLLM for problem in problems_of(found)] == []


def test_containers_are_restricted(pod: Object) -> None:
    assert pod["securityContext"]["runAsNonRoot"] is True
    assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    for container in containers(pod):
        assert container["securityContext"]["allowPrivilegeEscalation"] is False
        assert container["securityContext"]["capabilities"] == {"drop": ["ALL"]}


def test_k8_04_the_grace_covers_pre_stop_and_the_servers_own_drain(pod: Object, server: Object) -> None:
    pre_stop = server["lifecycle"]["preStop"]["sleep"]["seconds"]
    own_drain = int(arguments(server)["shutdown-timeout"])
    assert own_drain > 0, "vLLM aborts running streams by default"
    assert pod["terminationGracePeriodSeconds"] >= pre_stop + own_drain + 30


def test_k8_05_the_probe_outlives_the_server(pod: Object) -> None:
    probe = next(container for container in pod["initContainers"] if container["name"] == "probe")
    assert probe["restartPolicy"] == "Always"
    assert "lifecycle" not in probe, "hooks of native sidecars run at the start of termination"


def test_k8_07_liveness_waits_for_a_long_load_and_is_the_probes(pod: Object, server: Object) -> None:
    startup = server["startupProbe"]
    assert startup["periodSeconds"] * startup["failureThreshold"] >= 30 * 60
    probe = next(container for container in pod["initContainers"] if container["name"] == "probe")
    assert server["livenessProbe"]["httpGet"] == {"path": "/livez", "port": probe["ports"][0]["containerPort"]}


def test_the_probe_knows_its_arguments(pod: Object) -> None:
    probe = next(container for container in pod["initContainers"] if container["name"] == "probe")
    assert probe["args"][0] == "probe"
    parse_arguments(probe["args"][1:])


def test_the_annotations_are_facts_that_the_gateway_reads() -> None:
    annotations = one("Deployment")["spec"]["template"]["metadata"]["annotations"]
    facts = read_declared(annotations)
    assert facts.revision == "2026-10-01"
    assert facts.adapters == ()
    assert facts.tensor_parallel_size == 1
    unread = {name for name in annotations if name.startswith("deltafence.io/")}
    assert all(getattr(facts, name.removeprefix("deltafence.io/").replace("-", "_")) is not None for name in unread)


def test_the_guard_is_loaded_from_where_it_is_copied(pod: Object, server: Object) -> None:
    path = next(variable["value"] for variable in server["env"] if variable["name"] == "PYTHONPATH")
    volume = next(mount["name"] for mount in server["volumeMounts"] if mount["mountPath"] == path)
    guard = next(container for container in pod["initContainers"] if container["name"] == "guard")
    assert guard["volumeMounts"] == [{"name": volume, "mountPath": "/guard"}]
    assert arguments(server)["middleware"] == "extproc.worker.LeaseGuard"


def test_the_service_is_headless() -> None:
    assert one("Service")["spec"]["clusterIP"] == "None"


@pytest.mark.parametrize("name", ["processor", "worker"])
def test_containerfiles_pass_the_linter(name: str) -> None:
    linter = TOOLS / "lint" / "node_modules" / ".bin" / "dockerfilelint"
    result = subprocess.run([linter, IMAGES / f"{name}.Containerfile"], capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stdout


@pytest.mark.parametrize("name", ["processor", "worker"])
def test_images_are_pinned_small_and_without_root(name: str) -> None:
    lines = (IMAGES / f"{name}.Containerfile").read_text().splitlines()
    bases = [line.split()[1] for line in lines if line.startswith("FROM")]
    assert all("slim" in base and base.count(".") >= 3 and "latest" not in base for base in bases)
    assert "USER 65532:65532" in lines
    final = lines[max(index for index, line in enumerate(lines) if line.startswith("FROM")) :]
    assert not any(line.startswith("RUN") for line in final), "what builds stays behind"


def test_images_install_as_ci_does() -> None:
    """The steps of `make setup`: the lock with its hashes, then our own code without a look at any registry."""
    setup = (ROOT / "Makefile").read_text()
    for step in ("--require-hashes -r requirements.lock", "--no-deps --no-build-isolation"):
        assert step in setup
        for name in ("processor", "worker"):
            assert step in (IMAGES / f"{name}.Containerfile").read_text()


def test_what_the_images_copy_is_there() -> None:
    for name in ("processor", "worker"):
        for line in (IMAGES / f"{name}.Containerfile").read_text().splitlines():
            if line.startswith("COPY ") and "--from" not in line:
                copied: list[Any] = line.split()[1:-1]
                assert all((ROOT / path).exists() for path in copied), line
