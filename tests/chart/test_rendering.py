"""What the chart renders in every mode: valid objects, restricted pods, arguments that the programs know, refusals that help."""

import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from ruamel.yaml import YAML

from extproc.app.drain_command import drain
from extproc.app.envoy_config_command import envoy_config
from extproc.app.policy_command import policy
from extproc.app.processor_command import processor
from tests.chart.rendering import (
    CHART,
    ENVOY_GATEWAY,
    EVERYTHING,
    HA,
    ISTIO,
    TOOLS_OF_STANDALONE,
    RefusedError,
    Rendered,
    containers,
    helm,
    pod_specs,
    render,
)
from tests.chart.validation import problems_of

RENDERINGS: dict[str, Callable[[], Rendered]] = {
    "standalone": lambda: render(),
    "standalone ha": lambda: render(None, HA),
    "standalone everything": lambda: render({**EVERYTHING, **TOOLS_OF_STANDALONE}),
    "standalone sqlite": lambda: render({"journal": {"store": "sqlite", "sqlite": {"storageClassName": "fast"}}}),
    "envoyGateway": lambda: render(ENVOY_GATEWAY),
    "envoyGateway ha": lambda: render(ENVOY_GATEWAY, HA),
    "envoyGateway everything": lambda: render({**EVERYTHING, **ENVOY_GATEWAY, "test": {"url": "http://chat.example.com"}}),
    "envoyGateway without routes": lambda: render({"mode": "envoyGateway"}),
    "istio": lambda: render(ISTIO),
    "istio ha": lambda: render(ISTIO, HA),
    "istio everything": lambda: render({**EVERYTHING, **ISTIO, "istio": {"routes": []}}),
    "istio observing": lambda: render({**ISTIO, "policy": {"mode": "observe"}}),
}
Notes = Callable[[dict[str, Any]], str]
COMMANDS = {"processor": processor, "envoy-config": envoy_config, "drain": drain}


@pytest.fixture(params=RENDERINGS, scope="module")
def rendered(request: pytest.FixtureRequest) -> Rendered:
    return RENDERINGS[request.param]()


def test_helm_lint_finds_nothing() -> None:
    assert "0 chart(s) failed" in helm("lint", "--strict", str(CHART))


def test_every_object_is_what_its_api_server_takes(rendered: Rendered) -> None:
    assert [problem for found in rendered.objects for problem in problems_of(found)] == []


def test_an_unknown_field_would_be_seen() -> None:
    deployment = render().one("Deployment")
    deployment["spec"]["template"]["spec"]["containers"][0]["imagePullPolcy"] = "Always"
    assert any("imagePullPolcy" in problem for problem in problems_of(deployment))


def test_names_are_unique(rendered: Rendered) -> None:
    names = [(found["kind"], found["metadata"]["name"]) for found in rendered.objects]
    assert len(set(names)) == len(names)


def test_every_object_has_a_namespace_and_common_labels(rendered: Rendered) -> None:
    for found in rendered.objects:
        assert found["metadata"].get("namespace") or found["kind"].startswith("Cluster")
        assert found["metadata"]["labels"]["app.kubernetes.io/instance"] == "gateway"


def test_pods_meet_the_restricted_standard(rendered: Rendered) -> None:
    """kubernetes.io/docs/concepts/security/pod-security-standards, level restricted, and a read-only root besides."""
    for spec in pod_specs(rendered):
        assert not spec.keys() & {"hostNetwork", "hostPID", "hostIPC"}
        assert {key for volume in spec.get("volumes", []) for key in volume} <= {
            "name",
            "emptyDir",
            "configMap",
            "secret",
            "persistentVolumeClaim",
        }
        for container in containers(spec):
            if container["name"] == "envoy" and "image" not in container:
                continue  # Envoy Gateway's own container, of which the chart sets the user only
            context = container["securityContext"]
            assert context["allowPrivilegeEscalation"] is False
            assert context["capabilities"] == {"drop": ["ALL"]}
            assert context["runAsNonRoot"] is True
            assert context["runAsUser"] > 0
            assert context["readOnlyRootFilesystem"] is True
            assert context["seccompProfile"] == {"type": "RuntimeDefault"}


def test_every_container_of_ours_has_requests_and_a_memory_limit(rendered: Rendered) -> None:
    for spec in pod_specs(rendered):
        for container in containers(spec):
            if "image" in container:
                assert container["resources"]["requests"].keys() >= {"cpu", "memory"}
                assert "memory" in container["resources"]["limits"]


def test_the_containers_that_share_sockets_have_one_user(rendered: Rendered) -> None:
    for spec in pod_specs(rendered):
        users = {
            container["securityContext"]["runAsUser"]
            for container in containers(spec)
            if any(mount["name"] == "deltafence-run" for mount in container.get("volumeMounts", []))
        }
        assert len(users) <= 1


def test_every_argument_is_one_that_the_program_knows(rendered: Rendered) -> None:
    checked = set()
    for spec in pod_specs(rendered):
        for container in containers(spec):
            commands = [
                container.get("args", []),
                container.get("lifecycle", {}).get("preStop", {}).get("exec", {}).get("command", []),
            ]
            for words in commands:
                name = words[1] if words[:1] == ["deltafence"] else words[0] if words else ""
                if name in COMMANDS:
                    arguments = words[words.index(name) + 1 :]
                    COMMANDS[name].make_context(name, list(arguments), resilient_parsing=False).close()
                    checked.add(name)
    assert "processor" in checked


def test_termination_leaves_time_for_every_step(rendered: Rendered) -> None:
    for spec in pod_specs(rendered):
        for container in spec["containers"]:
            options = dict(
                word.removeprefix("--").split("=", 1)
                for word in container.get("args", [])
                if word.startswith("--") and "=" in word
            )
            hook = container.get("lifecycle", {}).get("preStop", {})
            if "drain-limit" not in options:
                continue
            if "sleep" in hook:
                first = hook["sleep"]["seconds"]
            else:
                first = int(
                    dict(word.removeprefix("--").split("=") for word in hook["exec"]["command"][2:])["limit"].removesuffix("s")
                )
            total = first + int(options["drain-limit"].removesuffix("s"))
            assert total + 10 <= spec["terminationGracePeriodSeconds"]


def test_the_policy_in_the_config_map_is_the_one_in_the_values() -> None:
    document = {"mode": "off", "on_upstream_failure": {"before_first_delta": {"max_attempts": 1}}}
    text = render({"policy": document}).one("ConfigMap")["data"]["policy.yaml"]
    assert YAML(typ="safe").load(text) == document
    result = CliRunner().invoke(policy, ["lint", "-"], input=text)
    assert (result.exit_code, result.output) == (0, "-: ok (policy)\n")


def test_k8_02_large_integers_stay_integers() -> None:
    rendered = render({"processor": {"maxRequestBytes": 1_048_576}, **{"envoy": {"heapBytesMax": 2_147_483_648}}})
    assert "--max-request-bytes=1048576" in rendered.text
    assert "--heap-bytes-max=2147483648" in rendered.text
    assert "e+" not in rendered.text


def test_a_changed_policy_restarts_the_pods() -> None:
    def checksum(values: dict[str, Any]) -> str:
        return str(render(values).one("Deployment")["spec"]["template"]["metadata"]["annotations"]["checksum/config"])

    assert checksum({}) != checksum({"policy": {"mode": "off"}})
    assert checksum({}) == checksum({"replicaCount": 2})


def test_the_hpa_owns_the_number_of_pods() -> None:
    rendered = render({"autoscaling": {"enabled": True}})
    assert "replicas" not in rendered.one("Deployment")["spec"]
    metric = rendered.one("HorizontalPodAutoscaler")["spec"]["metrics"][0]["pods"]
    assert metric == {"metric": {"name": "deltafence_requests_active"}, "target": {"type": "AverageValue", "averageValue": "400"}}


def rules(rendered: Rendered) -> list[dict[str, Any]]:
    return [rule for found in rendered.objects if found["kind"] in ("Role", "ClusterRole") for rule in found["rules"]]


def test_rights_are_the_least(rendered: Rendered) -> None:
    """Reading is list and watch of what is watched; writing is Events."""
    for rule in rules(rendered):
        assert "*" not in (*rule["apiGroups"], *rule["resources"], *rule["verbs"])
        assert rule["verbs"] == (["create"] if rule["resources"] == ["events"] else ["list", "watch"])
        assert not set(rule["resources"]) & {"secrets", "configmaps"}


def test_rights_and_a_token_are_given_only_for_what_is_watched() -> None:
    def given(values: dict[str, Any]) -> tuple[list[str], list[str], bool]:
        rendered = render(values)
        resources = sorted(resource for rule in rules(rendered) for resource in rule["resources"])
        spec = pod_specs(rendered)[0]
        watches = [word for word in spec["containers"][-1]["args"] if word.startswith(("--service", "--route-annotations"))]
        return resources, watches, spec["automountServiceAccountToken"]

    nothing = {"endpointSlices": False, "routeAnnotations": False}
    assert given({}) == (["endpointslices", "pods"], ["--service=llm/vllm:8000"], True)
    assert given({"upstream": {"urls": ["http://10.0.0.1:8000"]}}) == ([], [], False)
    assert given({**ISTIO, "kubernetesApi": nothing}) == ([], [], False)
    resources, watches, token = given({**ISTIO, "upstream": {"service": {"namespace": "gpu"}}})
    assert resources == ["endpointslices", "events", "grpcroutes", "httproutes", "pods", "virtualservices"]
    assert watches == ["--service=gpu/vllm:8000", "--route-annotations"]
    assert token is True


def test_a_binding_is_for_the_account_that_the_pods_run_under() -> None:
    rendered = render({**ENVOY_GATEWAY, "upstream": {"service": {"namespace": "gpu"}}})
    account = rendered.one("ServiceAccount")["metadata"]
    assert (account["namespace"], pod_specs(rendered)[0]["serviceAccountName"]) == ("envoy-gateway-system", account["name"])
    for name, namespace in (("-replicas", "gpu"), ("-routes", "llm")):
        assert rendered.one("RoleBinding", name)["subjects"] == [
            {"kind": "ServiceAccount", "name": account["name"], "namespace": "envoy-gateway-system"}
        ]
        assert rendered.one("RoleBinding", name)["roleRef"]["name"] == rendered.one("Role", name)["metadata"]["name"]
        assert rendered.one("Role", name)["metadata"]["namespace"] == namespace
        assert rendered.one("RoleBinding", name)["metadata"]["namespace"] == namespace


def test_routes_are_read_where_they_can_be_attached_from() -> None:
    """Envoy Gateway's policies target routes of their own namespace; an Istio gateway serves routes of all."""
    gateway = render(ENVOY_GATEWAY)
    assert not [kind for kind in gateway.kinds() if kind.startswith("Cluster")]
    assert "--route-namespace=llm" in gateway.text
    istio = render(ISTIO)
    assert [kind for kind in istio.kinds() if kind.startswith("Cluster")] == ["ClusterRole", "ClusterRoleBinding"]
    assert "--route-namespace" not in istio.text
    assert istio.one("ClusterRoleBinding")["roleRef"] == {
        "apiGroup": "rbac.authorization.k8s.io",
        "kind": "ClusterRole",
        "name": istio.one("ClusterRole")["metadata"]["name"],
    }


def test_the_journal_is_where_the_values_say() -> None:
    def journal(rendered: Rendered) -> Any:
        (container,) = rendered.one("Deployment")["spec"]["template"]["spec"]["containers"]
        return container.get("env")

    secret = {"secretKeyRef": {"name": "db", "key": "url"}}
    assert journal(render()) is None
    assert journal(render({"journal": {"store": "postgres", "postgres": {"existingSecret": "db"}}})) == [
        {"name": "DELTAFENCE_JOURNAL", "valueFrom": secret}
    ]
    rendered = render({"journal": {"store": "sqlite"}})
    assert journal(rendered) == [{"name": "DELTAFENCE_JOURNAL", "value": "/var/lib/deltafence/journal.db"}]
    assert rendered.one("Deployment")["spec"]["strategy"] == {"type": "Recreate"}
    assert rendered.one("PersistentVolumeClaim")["metadata"]["annotations"] == {"helm.sh/resource-policy": "keep"}


def test_secrets_reach_every_processor_as_files_that_it_may_read(rendered: Rendered) -> None:
    """A Secret's files belong to root; mode 0440 opens them for the pod's fsGroup only."""
    for spec in pod_specs(rendered):
        secrets = {volume["name"] for volume in spec.get("volumes", []) if "secret" in volume} - {"deltafence-ca"}
        processors = [container for container in containers(spec) if container.get("args", [""])[0] == "processor"]
        for container in processors:
            mounts = {mount["name"]: mount["mountPath"] for mount in container["volumeMounts"]}
            assert secrets <= mounts.keys()
            files = [word.partition("=")[2] for word in container["args"] if "-file=" in word]
            assert sorted(file.rpartition("/")[0] for file in files) == sorted(mounts[name] for name in secrets)
            if secrets:
                assert spec["securityContext"]["fsGroup"] == container["securityContext"]["runAsGroup"]


def test_who_connects_to_the_servers_reads_their_authorities_where_they_are_mounted() -> None:
    """Envoy, and the processors: their looks at health and their heartbeats go to the servers directly."""

    def of(ca: dict[str, str]) -> tuple[str, list[str]]:
        spec = pod_specs(render({"upstream": {"urls": ["https://10.0.0.5"], "ca": ca}}))[0]
        config, envoy = spec["initContainers"]
        (word,) = [word for word in config["args"] if word.startswith("--replica-ca=")]
        for container in spec["containers"]:
            assert (word in container["args"]) is bool(ca)
            assert ("/etc/deltafence-ca" in [mount["mountPath"] for mount in container["volumeMounts"]]) is bool(ca)
        return word.partition("=")[2], [mount["mountPath"] for mount in envoy["volumeMounts"]]

    file, mounts = of({"existingSecret": "model-ca", "key": "root.pem"})
    assert file == "/etc/deltafence-ca/root.pem"
    assert "/etc/deltafence-ca" in mounts
    assert of({}) == ("/etc/ssl/certs/ca-certificates.crt", ["/run/deltafence"]), "as Envoy's image has it"
    assert "--replica-ca" not in render().text


@pytest.mark.parametrize("values", [{}, ISTIO, ENVOY_GATEWAY])
def test_the_processors_own_ports_are_closed_to_clients(values: dict[str, Any]) -> None:
    """Facts about other people's requests are served there."""
    rules = render({**values, "processor": {"count": 3}}).one("NetworkPolicy")["spec"]["ingress"]
    assert len(rules) == 1
    for port in rules[0]["ports"]:
        assert not {9090, 9091, 9092} & set(range(port["port"], port.get("endPort", port["port"]) + 1))
    operators = [{"podSelector": {"matchLabels": {"app": "prometheus"}}}]
    opened = render({**values, "processor": {"count": 3}, "networkPolicy": {"operators": operators}})
    rule = opened.one("NetworkPolicy")["spec"]["ingress"][1]
    assert rule["ports"][0] == {"port": 9090, "endPort": 9092, "protocol": "TCP"}
    assert rule["from"] == operators


@pytest.mark.parametrize("values", [{}, ISTIO, ENVOY_GATEWAY])
def test_the_network_policy_selects_the_pods_and_lets_helms_test_in(values: dict[str, Any]) -> None:
    clients = [{"namespaceSelector": {"matchLabels": {"team": "apps"}}}]
    rendered = render({**values, "networkPolicy": {"clients": clients}, "test": {"url": "http://chat.example.com"}})
    policy = rendered.one("NetworkPolicy")
    if values is ENVOY_GATEWAY:
        labels = rendered.one("EnvoyProxy")["spec"]["provider"]["kubernetes"]["envoyDeployment"]["pod"]["labels"]
        assert policy["metadata"]["namespace"] == "envoy-gateway-system"
    else:
        labels = rendered.one("Deployment")["spec"]["template"]["metadata"]["labels"]
    assert policy["spec"]["podSelector"]["matchLabels"].items() <= labels.items()
    *named, test = policy["spec"]["ingress"][0]["from"]
    assert named == clients
    assert test["podSelector"]["matchLabels"].items() <= rendered.one("Pod")["metadata"]["labels"].items()
    assert not policy["spec"]["podSelector"]["matchLabels"].items() <= rendered.one("Pod")["metadata"]["labels"].items()


def test_a_meshs_envoy_ends_after_the_processors_last_words() -> None:
    """K8-05: what is left at the limit is ended with the terminal event, which somebody must still carry."""
    drain = {"drain": {"settleSeconds": 5, "limitSeconds": 60, "endSeconds": 7}}
    limit = "--drain-limit=55s"
    gateway = render({**ENVOY_GATEWAY, **drain})
    assert limit in gateway.text
    assert gateway.one("EnvoyProxy")["spec"]["shutdown"] == {"drainTimeout": "67s", "minDrainDuration": "5s"}
    istio = render({**ISTIO, **drain})
    assert limit in istio.text
    annotations = istio.one("Deployment")["spec"]["template"]["metadata"]["annotations"]
    assert json.loads(annotations["proxy.istio.io/config"]) == {"terminationDrainDuration": "67s"}


@pytest.mark.parametrize("mode", [ENVOY_GATEWAY, ISTIO])
@pytest.mark.parametrize(("where", "logger"), [("stdout", "StdoutAccessLog"), ("stderr", "StderrAccessLog"), ("", None)])
def test_attempts_are_in_the_meshs_access_log_unless_it_is_switched_off(
    mode: dict[str, Any], where: str, logger: str | None
) -> None:
    text = render({**mode, "envoy": {"accessLog": where}}).text
    found = re.findall(r"access_loggers\.stream\.v3\.(\w+)", text)
    assert found == ([] if logger is None else [logger])
    assert ("%REQ(x-deltafence-attempt-id)%" in text) == (logger is not None)


def test_helm_test_has_a_pod_wherever_the_chart_knows_whom_to_ask() -> None:
    def asked(values: dict[str, Any]) -> str | None:
        rendered = render(values)
        if "Pod" not in rendered.kinds():
            return None
        (container,) = rendered.one("Pod")["spec"]["containers"]
        return next(str(entry["value"]) for entry in container["env"] if entry["name"] == "GATEWAY")

    assert asked({}) == asked(ISTIO) == "http://gateway-deltafence.llm.svc:80"
    assert asked(ENVOY_GATEWAY) is None
    assert asked({**ENVOY_GATEWAY, "test": {"url": "http://chat.example.com"}}) == "http://chat.example.com"


def test_tools_have_a_service_of_their_own_that_only_callers_reach() -> None:
    rendered = render({"journal": {"store": "sqlite"}, **TOOLS_OF_STANDALONE})
    service = rendered.one("Service", "-tools")["spec"]
    assert (service["type"], service["ports"][0]["port"], service["ports"][0]["targetPort"]) == ("ClusterIP", 9000, "tools")
    _clients, tools = rendered.one("NetworkPolicy")["spec"]["ingress"]
    assert (tools["ports"][0]["port"], tools["from"]) == (8081, TOOLS_OF_STANDALONE["tools"]["callers"])
    assert "--tool=mail=http://mail.tools.svc:9000,require_key=true,status_path=/calls/{key},wait_ms=5000" in rendered.text


def test_a_watching_istio_gateway_leaves_the_meshs_retries_alone() -> None:
    patches = render({**ISTIO, "policy": {"mode": "observe"}}).one("EnvoyFilter")["spec"]["configPatches"]
    (inserted,) = [patch["patch"]["value"] for patch in patches if patch["applyTo"] == "HTTP_FILTER"]
    assert inserted["typed_config"]["observability_mode"] is True
    (route,) = [patch["patch"]["value"] for patch in patches if patch["applyTo"] == "HTTP_ROUTE"]
    assert list(route) == ["typed_per_filter_config"]
    assert list(route["typed_per_filter_config"]) == [inserted["name"]]


def test_envoy_outlives_the_processor() -> None:
    spec = render().one("Deployment")["spec"]["template"]["spec"]
    envoy = next(container for container in spec["initContainers"] if container["name"] == "envoy")
    assert envoy["restartPolicy"] == "Always"
    assert [container["name"] for container in spec["containers"]] == ["processor"]


def test_each_processor_has_its_socket_its_port_and_its_drain() -> None:
    rendered = render({"processor": {"count": 3}})
    spec = rendered.one("Deployment")["spec"]["template"]["spec"]
    assert len({next(word for word in c["args"] if "--socket" in word) for c in spec["containers"]}) == 3
    assert [container["ports"][0]["containerPort"] for container in spec["containers"]] == [9090, 9091, 9092]
    assert all(container["lifecycle"]["preStop"]["exec"] for container in spec["containers"])
    sockets = [word for word in spec["initContainers"][0]["args"] if word.startswith("--processor-socket")]
    assert len(sockets) == 3


def test_k8_01_every_annotation_is_a_string(rendered: Rendered) -> None:
    def check(node: Any) -> None:
        if isinstance(node, dict):
            for value in (node.get("annotations") or {}).values():
                assert isinstance(value, str)
            for value in node.values():
                check(value)
        elif isinstance(node, list):
            for value in node:
                check(value)

    for found in rendered.objects:
        check(found)


ROUTE = {"name": "chat", "path": "/v1/chat/completions"}
TOOL: dict[str, Any] = {"name": "mail", "url": "http://mail:9000"}
NO_CRDS: tuple[str, ...] = ()


@pytest.mark.parametrize(
    ("values", "reason"),
    [
        ({"replicaCont": 2}, "additional properties 'replicaCont' not allowed"),
        ({"processor": {"cont": 2}}, "additional properties 'cont' not allowed"),
        ({"replicaCount": "2"}, "got string, want integer"),
        ({"mode": "ambient"}, "/mode"),
        ({"policy": {"mode": False}}, "/policy/mode"),
        ({"policy": {"on_upstream_failure": {"after_first_delta": {"automatic_retry": True}}}}, "/automatic_retry"),
        ({"routes": [{"name": "a", "path": "a"}]}, "/routes/0/path"),
        ({"image": {"digest": "latest"}}, "/image/digest"),
        ({"terminationGracePeriodSeconds": 60}, "is below drain.limitSeconds + drain.endSeconds + 10 = 140"),
        ({"drain": {"settleSeconds": 121}}, "exceeds drain.limitSeconds"),
        ({"upstream": {"service": {"name": ""}}}, "name the headless Service of your servers"),
        ({"replicaCount": 2, "journal": {"store": "sqlite"}}, "there are several pods; set journal.store: postgres"),
        ({"autoscaling": {"enabled": True}, "journal": {"store": "sqlite"}}, "there are several pods"),
        ({"processor": {"count": 2}, "journal": {"store": "sqlite"}}, "belongs to one process"),
        ({**ENVOY_GATEWAY, "journal": {"store": "sqlite"}}, "set journal.store: postgres or memory"),
        ({"journal": {"store": "postgres"}}, "name the Secret that holds the connection URL"),
        ({"autoscaling": {"enabled": True, "minReplicas": 11}}, "exceeds autoscaling.maxReplicas"),
        ({**ISTIO, "routes": [{"name": "a", "path": "/a"}]}, "belong to the standalone gateway"),
        ({**ISTIO, "upstream": {"urls": ["https://a"]}}, "only mode standalone does"),
        ({**ENVOY_GATEWAY, "drain": {"settleSeconds": 120}}, "must exceed drain.settleSeconds"),
        ({"journal": {"store": "sqlite"}, "policy": {"lease": {"ttl_ms": 25_000}}}, "exceeds journal.takeoverAfterSeconds 20"),
        ({"policy": {"deadlines": {"first_delta_ms": 4_000_000}}}, "exceeds deadlines.total_ms 3600000; lower"),
        ({"policy": {"lease": {"ttl_ms": 1000}}}, "policy: lease.cancel_timeout_ms 2000 exceeds lease.ttl_ms 1000"),
        (
            {"policy": {"lease": {"ttl_ms": 2000}}, "routes": [ROUTE | {"policy": {"lease": {"cancel_timeout_ms": 3000}}}]},
            "routes[0].policy: lease.cancel_timeout_ms 3000 exceeds lease.ttl_ms 2000",
        ),
        ({"policy": {"deadlines": {"first_delta_ms": 900_000}}}, "raise that above 900000 ms"),
        ({**ISTIO, "policy": {"deadlines": {"first_delta_ms": 900_000}}}, "after envoy.streamIdleSeconds 900"),
        ({"policy": {"deadlines": {"total_ms": 7_200_000}}}, "after envoy.streamMaxSeconds 3660; raise that"),
        ({"policy": {"tools": "ledger"}}, "and there is none; set journal.store"),
        ({**ENVOY_GATEWAY, "policy": {"mode": "observe"}}, "Envoy Gateway does not offer; use mode istio or standalone"),
        ({"health": {"hungAfterSeconds": 5, "intervalSeconds": 6}}, "exceeds health.hungAfterSeconds 5"),
        ({"processor": {"maxBodiesBytes": 1_000_000}}, "has no room for one request of processor.maxRequestBytes 67108864"),
        ({"routes": [ROUTE, ROUTE]}, "two routes have the name chat"),
        ({"routes": [ROUTE, ROUTE | {"name": "other"}]}, "two routes have the path /v1/chat/completions"),
        ({"podLabels": {"app.kubernetes.io/name": "mine"}}, "app.kubernetes.io/name is the chart's own"),
        ({**ISTIO, "podLabels": {"istio": "mine"}}, "istio is the chart's own"),
        ({"podAnnotations": {"checksum/config": "1"}}, "checksum/config is the chart's own"),
        ({"processor": {"extraArgs": ["--max-streams=5"]}}, "--max-streams is set by a value of the chart"),
        ({"processor": {"env": [{"name": "DELTAFENCE_JOURNAL", "value": "x"}]}}, "is set by journal.store"),
        ({"upstream": {"facts": {"http://a:1": {"revision": "1"}}}}, "http://a:1 is none of upstream.urls"),
        ({"tools": {"routes": [TOOL]}}, "the ledger is kept in the journal's database"),
        ({**ISTIO, "tools": {"routes": [TOOL]}}, "install the chart a second time in that mode"),
        ({"journal": {"store": "sqlite"}, "tools": {"routes": [TOOL]}}, "nobody can call them while tools.callers is empty"),
        ({"tools": {"routes": [TOOL | {"status_path": "/calls"}]}}, "/tools/routes/0/status_path"),
        (
            {"journal": {"store": "sqlite"}, "networkPolicy": {"enabled": False}, "tools": {"routes": [TOOL, TOOL]}},
            "tools.routes: mail is there twice",
        ),
        (
            {
                "journal": {"store": "sqlite"},
                "networkPolicy": {"enabled": False},
                "tools": {"routes": [TOOL | {"wait_ms": 600_001}]},
            },
            "mail: wait_ms is longer than deadline_ms",
        ),
        ({"podMonitor": {"enabled": True}}, "Prometheus can't reach the pods while networkPolicy.operators is empty"),
    ],
)
def test_contradictions_are_refused_with_what_to_do(values: dict[str, Any], reason: str) -> None:
    with pytest.raises(RefusedError) as refused:
        render(values)
    assert reason in str(refused.value)


def test_what_a_refusal_names_is_taken() -> None:
    lease = {"journal": {"store": "sqlite", "takeoverAfterSeconds": 25}, "policy": {"lease": {"ttl_ms": 25_000}}}
    assert "--takeover-after=25s" in render(lease).text
    slow = {"envoy": {"streamIdleSeconds": 1801}, "policy": {"deadlines": {"first_delta_ms": 1_800_000}}}
    assert "--stream-idle=1801s" in render(slow).text
    assert "stream_idle_timeout: 1801s" in render({**ISTIO, **slow}).text


@pytest.mark.parametrize("mode", [ENVOY_GATEWAY, ISTIO])
def test_modes_that_need_the_sleep_hook_are_refused_where_it_is_not(mode: dict[str, Any]) -> None:
    with pytest.raises(RefusedError, match=r"needs Kubernetes 1\.30 or newer"):
        render(mode, kubernetes="1.29.9")
    render(kubernetes="1.29.9")


def test_every_option_of_the_processor_is_a_value_or_said_to_be_for_extra_args() -> None:
    """A new option must come into the chart, or into the list of those that only `extraArgs` reach."""
    options = {word.removeprefix("--") for parameter in processor.params for word in parameter.opts if word.startswith("--")}
    only_extra = {"decision-log"}
    (listed,) = re.findall(r"\$byValues := list (.+?) -}}", (CHART / "templates" / "_validate.tpl").read_text())
    assert set(re.findall(r'"([a-z-]+)"', listed)) == options - only_extra
    given = {
        word.partition("=")[0].removeprefix("--")
        for name in RENDERINGS
        for spec in pod_specs(RENDERINGS[name]())
        for container in spec["containers"]
        if container.get("args", [""])[0] == "processor"
        for word in container["args"][1:]
    }
    assert given | {"journal"} == options, "the journal's address is a secret: it comes by the environment"


@pytest.mark.parametrize(
    "values", [ENVOY_GATEWAY, ISTIO, {"podMonitor": {"enabled": True}}, {"monitoring": {"rules": {"enabled": True}}}]
)
def test_what_needs_missing_crds_is_refused(values: dict[str, Any]) -> None:
    with pytest.raises(RefusedError, match="which this cluster does not have"):
        render(values, api_versions=NO_CRDS)


@pytest.fixture
def notes(tmp_path: Path) -> Notes:
    """What Helm prints after an install, from values.

    A client-side `helm install` knows no CRDs and `helm template` drops the notes, so a copy of the chart has an object
    that holds them.
    """
    chart = tmp_path / "chart"
    shutil.copytree(CHART, chart)
    holder = 'kind: Notes\nmetadata: {name: notes}\ntext: {{ include (print $.Template.BasePath "/NOTES.txt") . | toJson }}\n'
    (chart / "templates" / "notes.yaml").write_text(holder)
    return lambda values: str(render(values, chart=chart).one("Notes")["text"])


@pytest.mark.parametrize(
    ("mode", "way"),
    [
        ("standalone", "port-forward svc/gateway-deltafence 8080:80"),
        ("istio", "port-forward svc/gateway-deltafence 8080:80"),
        ("envoyGateway", "get gateway YOUR-GATEWAY"),
    ],
)
def test_notes_hold_the_first_request_of_every_mode(notes: Notes, mode: str, way: str) -> None:
    text = notes({"mode": mode})
    assert way in text
    assert "curl -N -i $GATEWAY/v1/chat/completions" in text
    assert ("helm -n llm test gateway" in text) == (mode != "envoyGateway")
    assert "helm -n llm test gateway" in notes({"mode": mode, "test": {"url": "http://chat.example.com"}})


@pytest.mark.parametrize(
    ("values", "warning"),
    [
        ({}, "journal.store is memory"),
        ({}, "guard.existingSecret is empty"),
        ({"journal": {"store": "sqlite"}}, "journal.keySecret.existingSecret is empty"),
        ({"autoscaling": {"enabled": True}}, "nobody may scrape it, so nothing will scale"),
    ],
)
def test_notes_warn_of_what_is_weak(notes: Notes, values: dict[str, Any], warning: str) -> None:
    warnings = [line for line in notes(values).splitlines() if line.startswith("WARNING: ")]
    assert any(warning in line for line in warnings)


def test_notes_of_a_sound_installation_hold_no_warning(notes: Notes) -> None:
    journal = {"store": "sqlite", "keySecret": {"existingSecret": "keys"}}
    assert "WARNING" not in notes({"journal": journal, "guard": {"existingSecret": "guard"}})


def test_values_and_schema_name_the_same_keys() -> None:
    def keys(schema: dict[str, Any], value: Any, path: str = "") -> None:
        properties = schema.get("properties")
        if properties is None or not isinstance(value, dict) or path == ".policy":
            return
        assert set(value) == set(properties) - {"global"}, path
        for key, child in value.items():
            keys(properties[key], child, f"{path}.{key}")

    keys(json.loads((CHART / "values.schema.json").read_text()), YAML(typ="safe").load(CHART / "values.yaml"))
