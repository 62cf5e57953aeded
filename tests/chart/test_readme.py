"""The README's commands are ones that Helm and our own programs take, and its objects ones that API servers take."""

import re
import shlex

import pytest
from ruamel.yaml import YAML

from extproc.app.cli import CLICK_COMMANDS, load
from extproc.routes.annotations import PATHS
from tests.chart.rendering import API_VERSIONS, ENVOY_GATEWAY, ISTIO, ROOT, helm, pod_specs, render

README = (ROOT / "deploy" / "k8s" / "README.md").read_text()
SHELL = [block.replace("\\\n", " ") for block in re.findall(r"```sh\n(.*?)```", README, re.DOTALL)]
INSTALLS = [line for block in SHELL for line in block.splitlines() if line.startswith("helm -n llm install")]


def words_of(line: str) -> list[str]:
    return shlex.split(line.replace("$REGISTRY", "registry.example/deltafence"))


def test_there_is_one_install_for_each_mode() -> None:
    modes = [re.search(r"mode=(\w+)", line) for line in INSTALLS]
    assert sorted(found[1] if found else "standalone" for found in modes) == ["envoyGateway", "istio", "standalone"]


@pytest.mark.parametrize("line", INSTALLS)
def test_every_install_renders(line: str) -> None:
    words = words_of(line)
    place = words.index("install")
    versions = [word for version in API_VERSIONS for word in ("--api-versions", version)]
    rendered = helm(*words[1:place], "template", *words[place + 1 :], *versions, "--kube-version", "1.35.0")
    assert "registry.example/deltafence/processor:0.1.0" in rendered
    assert "secretName: deltafence-guard" in rendered


def test_every_annotation_that_it_names_exists() -> None:
    named = set(re.findall(r"(?<!-l )deltafence\.io/([a-z-]+)", README)) | set(
        re.findall(r"envoyproxy\.io/deltafence\.([a-z-]+)", README)
    )
    assert named
    assert named <= {*PATHS, "policy"}


def test_every_command_of_ours_exists() -> None:
    for line in re.findall(r"(?m)(?:^|\| |-- )deltafence (.+?)(?: &|$)", "\n".join(SHELL)):
        name, *rest = shlex.split(line.partition("#")[0])
        command = load(CLICK_COMMANDS[name])
        command.commands[rest[0]].make_context(rest[0], rest[1:], resilient_parsing=True).close()


ROUTES, TOOLS_VALUES, MONITORING, ADAPTER = re.findall(r"```yaml\n(.*?)```", README, re.DOTALL)


@pytest.mark.parametrize(
    ("example", "brings"), [(ROUTES, "routes.yaml"), (TOOLS_VALUES, "--tool=mail="), (MONITORING, "kind: PrometheusRule")]
)
def test_the_values_in_it_are_the_charts(example: str, brings: str) -> None:
    assert brings in render(YAML(typ="safe").load(example)).text


def test_the_adapters_rule_keeps_the_series_name() -> None:
    """Without `name`, prometheus-adapter serves a gauge under its own name, which the autoscaler asks for."""
    (rule,) = YAML(typ="safe").load(ADAPTER)["rules"]
    assert "name" not in rule
    assert rule["seriesQuery"].startswith("deltafence_requests_active{")


def test_the_upgrade_that_lets_helm_test_in_renders() -> None:
    (line,) = [line for block in SHELL for line in block.splitlines() if "--set test.url=" in line]
    assert "--reuse-values" in line
    assert render({**ENVOY_GATEWAY, "test": {"url": "http://10.0.0.1"}}).one("Pod")


def test_what_the_readme_asks_of_pods_is_there() -> None:
    """The names of containers and labels in its `kubectl exec` commands."""
    assert "-l deltafence.io/processor=deltafence" in README
    assert "-c processor --" in README
    for mode, kind in (({}, "Deployment"), (ISTIO, "Deployment"), (ENVOY_GATEWAY, "EnvoyProxy")):
        rendered = render(mode, release="deltafence")
        assert rendered.one(kind)["metadata"]["name"] == "deltafence"
        (spec,) = pod_specs(rendered)[:1]
        assert "processor" in [container["name"] for container in spec["containers"]]
    labels = rendered.one("EnvoyProxy")["spec"]["provider"]["kubernetes"]["envoyDeployment"]["pod"]["labels"]
    assert labels["deltafence.io/processor"] == "deltafence"


def test_its_objects_fit_the_charts_names() -> None:
    documents = [
        document
        for block in re.findall(r"<<'YAML'\n(.*?)\nYAML", README, re.DOTALL)
        for document in YAML(typ="safe").load_all(block)
    ]
    by_kind = {(document["apiVersion"].partition("/")[0], document["kind"]): document for document in documents}
    parameters = by_kind["gateway.networking.k8s.io", "Gateway"]["spec"]["infrastructure"]["parametersRef"]
    assert parameters == {"group": "gateway.envoyproxy.io", "kind": "EnvoyProxy", "name": "deltafence"}
    assert by_kind["gateway.networking.k8s.io", "HTTPRoute"]["metadata"]["name"] == "chat"
    assert by_kind["networking.istio.io", "Gateway"]["spec"]["selector"] == {"istio": "deltafence-gateway"}
    assert by_kind["networking.istio.io", "VirtualService"]["spec"]["http"][0]["name"] == "chat"


@pytest.mark.parametrize("target", re.findall(r"\]\(([^)#]+)\)", README))
def test_links_lead_somewhere(target: str) -> None:
    assert (ROOT / "deploy" / "k8s" / target).exists()
