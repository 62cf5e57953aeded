"""Nothing on a dashboard, in an alert or on the metrics page names a metric or a label that no processor has."""

import json
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
import pytest_asyncio
from prometheus_client.parser import text_string_to_metric_families
from ruamel.yaml import YAML

from extproc.sim.faults import Fault, What, Where
from extproc.sim.process import start_replica
from extproc.sim.settings import Settings
from extproc.telemetry.instruments import INSTRUMENTS, Kind
from tests.telemetry.running import running

pytestmark = pytest.mark.asyncio(loop_scope="module")

ROOT = Path(__file__).parents[2]
OBSERVABILITY = ROOT / "deploy" / "observability"
TOKEN = "secret"
LABELS_OF_PROMETHEUS = {"le", "instance", "job"}


def queries() -> Iterator[tuple[str, str]]:
    """Where, and the query."""
    for group in YAML(typ="safe").load(OBSERVABILITY / "alerts.yaml")["groups"]:
        for rule in group["rules"]:
            yield rule["alert"], rule["expr"]
    dashboard = json.loads((OBSERVABILITY / "grafana-dashboard.json").read_text())
    for panel in dashboard["panels"]:
        for target in panel.get("targets", ()):
            yield panel["title"], target["expr"]
    for variable in dashboard["templating"]["list"]:
        if variable["type"] == "query":
            yield variable["name"], variable["query"]


def metrics_in(query: str) -> set[str]:
    return set(re.findall(r"\b(?:deltafence|gen_ai)_[a-z_]+(?=[{\[,)\s]|$)", re.sub(r"by \([^)]*\)", "", query)))


def labels_in(query: str) -> set[str]:
    grouped = {word.strip() for group in re.findall(r"by \(([^)]*)\)", query) for word in group.split(",")}
    selected = set(re.findall(r"[{,]\s*([a-z_]+)\s*(?:=~|=|!=|!~)", query))
    return grouped | selected


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def scrapes(tmp_path_factory: pytest.TempPathFactory) -> dict[str, set[str]]:
    """Every series' name with its labels, from processors that have seen what processors see."""
    found: dict[str, set[str]] = {}
    once = {"times": 1, "body_contains": '"messages"'}  # not for health's own short answers
    repeat = Fault(where=Where.AFTER_ROLE, what=What.ERROR_EVENT, **once)
    broken = Fault(where=Where.MID_DECODE, what=What.RESET, **once)
    async with start_replica(Settings(name="a", guard=True, token=TOKEN)) as a, start_replica(Settings(name="b")) as b:
        for mode in ("enforce", "observe"):
            directory = tmp_path_factory.mktemp(mode)
            (directory / "policy.yaml").write_text(f"mode: {mode}\nlease: {{ttl_ms: 1000, cancel_timeout_ms: 500}}\n")
            (directory / "token").write_text(TOKEN)
            options = ("--policy", directory / "policy.yaml", "--token-file", directory / "token")
            replicas = [word for replica in (a, b) for word in ("--replica", replica.url)]
            async with running(*replicas, *options, directory=directory) as gateway:
                for replica in (a, b):
                    await replica.set_faults(repeat)
                await gateway.chat()
                for replica in (a, b):
                    await replica.set_faults(broken)
                await gateway.chat(stream=mode == "enforce")
                await gateway.chat(b"[1]")
                for replica in (a, b):
                    await replica.set_faults()
                await gateway.chat()
                text = await gateway.scrape_once("deltafence_replica_verdict{")
            for family in text_string_to_metric_families(text):
                for sample in family.samples:
                    found.setdefault(sample.name, set()).update(sample.labels)
    return found


@pytest.mark.parametrize(("where", "query"), list(queries()))
async def test_every_metric_and_label_of_a_query_is_in_a_scrape(scrapes: dict[str, set[str]], where: str, query: str) -> None:
    metrics = metrics_in(query)
    assert metrics, query
    assert metrics <= set(scrapes), where
    known = set().union(*(scrapes[metric] for metric in metrics)) | LABELS_OF_PROMETHEUS
    assert labels_in(query) <= known, where


async def test_every_metric_of_the_table_is_in_a_scrape_with_its_labels(scrapes: dict[str, set[str]]) -> None:
    for instrument in INSTRUMENTS:
        name = instrument.prometheus_name + ("_count" if instrument.kind is Kind.HISTOGRAM else "")
        assert name in scrapes, instrument.name
        assert scrapes[name] == {label.replace(".", "_") for label in instrument.labels}, instrument.name


async def test_every_metric_is_on_the_dashboard() -> None:
    shown = {metric for _, query in queries() for metric in metrics_in(query)}
    bases = {re.sub(r"_(bucket|sum|count)$", "", metric) for metric in shown}
    assert {instrument.prometheus_name for instrument in INSTRUMENTS} <= bases
