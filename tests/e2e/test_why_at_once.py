"""`why`, the page and `notify` at a cluster without our software, as a user who may only read
`__consumer_offsets`.
"""

import json
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any
from urllib.request import urlopen

import pytest
from click.testing import CliRunner, Result

from cli import main
from cli.processes.child import Children
from embedded.broker import EmbeddedBroker, free_ports
from embedded.java import HOST
from kafka_why.connections import kafka_clients
from kafka_why.connections.client_config import ClientConfig
from kafka_why.contract.layout import KAFKAS_OFFSETS_TOPIC
from kafka_why.page import cluster_followers
from kafka_why.page.server import Page
from kafka_why.topic_reader import BrokersOwn
from kafka_why.web import listening_at, url_of
from kafka_why.why import live_sources
from kafka_why.why.live_sources import LiveOffsetsTopic
from tests.e2e.gateway_clients import PARTITIONS, ConfluentMember, new_group, share
from tests.e2e.harness import create_topic, wait_until
from tests.harness.commands import invoke
from tests.harness.recording_proxy import RecordingProxy
from tests.harness.run_command import follow
from tests.harness.secured_broker import (
    ADMIN,
    TOOLS,
    Allowed,
    ClusterSecurity,
    SecuredBroker,
    grant,
    write_properties,
)
from tests.harness.webhook import Reply, Webhook

pytestmark = [pytest.mark.e2e, pytest.mark.one_form]

READER, STRANGER, POLLER = "alice", "bob", TOOLS
TOPIC = "orders"


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SecuredBroker]:
    folder = tmp_path_factory.mktemp("secured")
    with SecuredBroker(folder, ClusterSecurity(folder / "security", authorizes=True)) as broker:
        create_topic(broker.config_of(ADMIN), TOPIC, PARTITIONS, {})
        may = [
            Allowed(READER, "TOPIC", KAFKAS_OFFSETS_TOPIC, "LITERAL", ("READ",)),
            Allowed(POLLER, "TOPIC", TOPIC, "LITERAL", ("DESCRIBE",)),
            Allowed(POLLER, "GROUP", "group-", "PREFIXED", ("DESCRIBE",)),
        ]
        grant(broker.config_of(ADMIN), may)
        yield broker


def member(broker: SecuredBroker, group: str, *, epochs: bool) -> ConfluentMember:
    config = broker.config_of(ADMIN)
    return ConfluentMember(
        config.bootstrap_servers,
        group,
        TOPIC,
        is_of_consumer_protocol=epochs,
        settings=config.librdkafka_settings(),
    )


def ask(broker: SecuredBroker, folder: Path, user: str, *arguments: str) -> Result:
    properties = folder / f"{user}.properties"
    if not properties.exists():
        write_properties(properties, broker.security.client_properties(user))
    cluster = ("--bootstrap-servers", broker.bootstrap_servers, "--client-config", str(properties))
    return CliRunner().invoke(main, [*arguments, *cluster])


@contextmanager
def page_of(broker: SecuredBroker, user: str) -> Iterator[str]:
    """Run a page of the brokers' own topic as this user. Yield its address."""
    with (
        listening_at("127.0.0.1", 0) as listening,
        Page(
            broker.config_of(user), BrokersOwn.OFFSETS_TOPIC, listening, connect_to=broker.bootstrap_servers
        ),
    ):
        yield url_of(listening)


def shown(url: str) -> dict[str, Any]:
    with urlopen(f"{url}api/groups", timeout=10) as response:
        found: dict[str, Any] = json.load(response)
    return {line["group_id"]: line for line in found["groups"]} | {"remarks": " ".join(found["remarks"])}


def test_page_shows_rebalances_from_before_its_start(
    broker: SecuredBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cluster_followers, "FIRST_MS", 0)  # so all that was before is read backwards
    monkeypatch.setattr(cluster_followers, "SLICE_RECORDS", 12)
    classic, epochs = new_group(), new_group()
    for group in (classic, epochs):
        with closing(member(broker, group, epochs=group == epochs)) as stays:
            share(stays)  # so the second one does not join in the same rebalance
            with closing(member(broker, group, epochs=group == epochs)) as leaves:
                share(stays, leaves)
            share(stays)
    with closing(kafka_clients.admin(broker.config_of(ADMIN))) as admin, page_of(broker, READER) as url:
        before = {group["group_id"] for group in admin.list_groups()}, admin.list_topics()
        for group in (classic, epochs):
            wait_until(lambda group=group: shown(url).get(group, {}).get("rebalances") == 4, group)  # type: ignore[misc]
        wait_until(lambda: "being read" not in shown(url)["remarks"], "the beginning of the topic")
        lines = shown(url)
        assert [(lines[g]["state"], lines[g]["members"]) for g in (classic, epochs)] == [("Empty", 0)] * 2
        assert all("left or expired" in lines[group]["change"] for group in (classic, epochs))
        assert "may not list groups" in lines["remarks"]
        with closing(member(broker, classic, epochs=False)) as late:
            share(late)
            wait_until(lambda: shown(url)[classic]["state"] == "Stable", "the member on the page")
        for path in (f"group?id={classic}", f"group?id={epochs}", "members", "api/members"):
            with urlopen(f"{url}{path}", timeout=10) as response:
                assert "rdkafka" in response.read().decode()
        assert ({group["group_id"] for group in admin.list_groups()}, admin.list_topics()) == before


def test_page_without_older_records_states_since_when_it_is_complete(
    broker: SecuredBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cluster_followers, "FIRST_MS", 0)
    monkeypatch.setattr(cluster_followers, "SLICE_RECORDS", 1)
    monkeypatch.setattr(cluster_followers, "MAX_KEPT_BYTES", 0)
    with closing(member(broker, new_group(), epochs=False)) as there:
        share(there)
    with page_of(broker, ADMIN) as url:
        wait_until(lambda: "to bound the memory" in shown(url)["remarks"], "the bound")
        assert "complete since" in shown(url)["remarks"]
        assert "no record has been read yet of" in shown(url)["remarks"]


def test_page_polls_groups_without_read_access_to_the_topic(broker: SecuredBroker, tmp_path: Path) -> None:
    group, properties = new_group(), tmp_path / "poller.properties"
    write_properties(properties, broker.security.client_properties(POLLER))
    cluster = ("--bootstrap-servers", broker.bootstrap_servers, "--client-config", str(properties))
    with Children(tmp_path) as children, closing(member(broker, group, epochs=False)) as stays:
        share(stays)
        page = children.start("page", "page", *cluster)
        url = page.wait_for_line(lambda line: line.startswith("ready:"), 120).partition(" ")[2].strip()
        wait_until(lambda: shown(url).get(group, {}).get("state") == "Stable", "the first poll")
        with closing(member(broker, group, epochs=False)) as leaves:
            share(stays, leaves)
            wait_until(lambda: shown(url)[group]["members"] == 2, "the second member")
        wait_until(lambda: shown(url)[group]["rebalances"] == 2, "both rebalances")
        assert "made of polls since" in shown(url)["remarks"]
        with urlopen(f"{url}group?id={group}", timeout=10) as response:
            assert "rdkafka" in response.read().decode()


def test_notify_sends_each_rebalance_once_despite_a_kill(
    broker: SecuredBroker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    group, properties = new_group(), tmp_path / "reader.properties"
    write_properties(properties, broker.security.client_properties(READER))
    with (
        Webhook() as webhook,
        Children(tmp_path) as children,
        closing(member(broker, group, epochs=False)) as stays,
    ):
        command = (
            *("notify", "--bootstrap-servers", broker.bootstrap_servers, "--client-config", str(properties)),
            *("--url", webhook.url(), "--data-dir", str(tmp_path / "kept"), "--group", group),
        )
        share(stays)  # before the first start, so it is not told
        first = children.start("first", *command)
        first.wait_for_line(lambda line: line.startswith("ready:"), 120)
        with closing(member(broker, group, epochs=False)) as leaves:
            share(stays, leaves)
            webhook.wait_for(lambda got: len(got.messages()) == 1, "the member that joined")
            webhook.default = Reply(503)
        webhook.wait_for(lambda got: got.received[-1].status == 503, "an attempt to tell that it left")
        first.kill()
        webhook.default = Reply()
        children.start("second", *command)
        webhook.wait_for(lambda got: len(got.messages()) == 2, "what was not told")
        stays.close()
        webhook.wait_for(lambda got: len(got.messages()) == 3, "what happened after the restart")
    told = json.loads(ask(broker, tmp_path, READER, "why", group, "-o", "json").stdout)["rebalances"][1:]
    assert [(one["began_ms"], one["ended_ms"]) for one in webhook.messages()] == [
        (one["began_ms"], one["ended_ms"]) for one in told
    ]


@pytest.mark.parametrize("epochs", [False, True], ids=["classic", "consumer protocol"])
def test_why_explains_rebalances_of_a_group_that_has_become_empty(
    broker: SecuredBroker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, epochs: bool
) -> None:
    monkeypatch.setattr(live_sources, "POLLING_S", 1)
    group = new_group()
    with closing(member(broker, group, epochs=epochs)) as stays:
        share(stays)
        with closing(member(broker, group, epochs=epochs)) as leaves:
            share(stays, leaves)
        share(stays)
        listed = ask(broker, tmp_path, ADMIN, "groups", "list", "--state", "--type")
        described = ask(broker, tmp_path, ADMIN, "groups", "describe", group, "--members", "-o", "json")
        polled = ask(broker, tmp_path, POLLER, "why", group, "-o", "json")
        with closing(LiveOffsetsTopic(broker.config_of(READER), group, None, lambda *_: None)) as live:
            assert live.more() == [], "READ on the topic is enough to follow a group"
    assert polled.exit_code == 0, polled.output
    report = json.loads(polled.stdout)
    assert (report["state"], len(report["members"]), report["rebalances"]) == ("Stable", 1, [])
    assert f"--operation Read --topic {KAFKAS_OFFSETS_TOPIC}" in report["notes"][-1]
    kind = "Consumer" if epochs else "Classic"
    assert [group, kind, "Stable"] in [line.split() for line in listed.stdout.splitlines()], listed.output
    (shown,) = json.loads(described.stdout)
    assert (shown["state"], [one["partitions"] for one in shown["members"]]) == ("Stable", [PARTITIONS])
    told = ask(broker, tmp_path, READER, "why", group, "-o", "json")
    assert told.exit_code == 0, told.output
    report = json.loads(told.stdout)
    assert [one["cause"]["kind"] for one in report["rebalances"]] == ["member joined"] * 2 + [
        "member left or expired"
    ] * 2
    assert (report["state"], report["members"]) == ("Empty", [])
    assert [one["moves"]["moved"] for one in report["rebalances"]][1:3] == [PARTITIONS // 2] * 2
    assert f"read from {KAFKAS_OFFSETS_TOPIC}-" in report["notes"][-1]
    with closing(kafka_clients.admin(broker.config_of(ADMIN))) as admin:
        assert set(admin.list_topics()) <= {TOPIC, KAFKAS_OFFSETS_TOPIC}, "the command creates no topic"


@pytest.mark.parametrize("command", [("why", "orders-service"), ("page",)], ids=["why", "page"])
def test_missing_right_is_named_with_the_command_that_grants_it(
    broker: SecuredBroker, tmp_path: Path, command: tuple[str, ...]
) -> None:
    told = ask(broker, tmp_path, STRANGER, *command)
    assert told.exit_code == 1
    assert f"--operation Read --topic {KAFKAS_OFFSETS_TOPIC}" in told.stderr
    assert ("--operation Describe --group orders-service" in told.stderr) is ("why" in command)


def test_unknown_group_is_an_error(broker: SecuredBroker, tmp_path: Path) -> None:
    wait_until(
        lambda: "is unknown" in ask(broker, tmp_path, READER, "why", "nobody").stderr,
        "the error about the group",
    )


READS = {
    "ApiVersions",
    "ConsumerGroupDescribe",
    "DescribeCluster",
    "DescribeGroups",
    "Fetch",
    "FindCoordinator",
    "ListGroups",
    "ListOffsets",
    "Metadata",
    "OffsetFetch",
    "ShareGroupDescribe",
    "StreamsGroupDescribe",
}


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, RecordingProxy]]:
    """Yield a broker's address for members, and a proxy for all requests of the commands."""
    ports, recorded = free_ports(), free_ports().client
    with RecordingProxy(recorded) as proxy:
        overrides = {
            "listeners": f"CLIENT://{HOST}:{ports.client},RECORDED://{HOST}:{recorded},"
            f"CONTROLLER://{HOST}:{ports.controller}",
            "advertised.listeners": f"CLIENT://{HOST}:{ports.client},RECORDED://{proxy.address}",
            "listener.security.protocol.map": "CLIENT:PLAINTEXT,RECORDED:PLAINTEXT,CONTROLLER:PLAINTEXT",
            # So a group's first rebalance lasts long enough to be seen.
            "group.initial.rebalance.delay.ms": "2000",
        }
        folder = tmp_path_factory.mktemp("broker")
        with EmbeddedBroker(folder, ports=ports, overrides=overrides) as broker:
            create_topic(ClientConfig(broker.bootstrap_servers), TOPIC, PARTITIONS, {})
            yield broker.bootstrap_servers, proxy


def follow_member(servers: str, group: str, *, epochs: bool) -> ConfluentMember:
    return ConfluentMember(servers, group, TOPIC, is_of_consumer_protocol=epochs)


@pytest.mark.parametrize(("source", "epochs"), [("offsets", False), ("polling", True)])
def test_rebalances_are_explained_as_they_happen(
    cluster: tuple[str, RecordingProxy], source: str, *, epochs: bool
) -> None:
    servers, proxy = cluster
    group = new_group()
    with closing(follow_member(servers, group, epochs=epochs)) as first:
        share(first)
        with follow(group, "--bootstrap-servers", proxy.address, "--source", source) as followed:
            wait_until(lambda: len(followed.of("report")) == 1, "the report")
            with closing(follow_member(servers, group, epochs=epochs)) as second:
                share(first, second)
                wait_until(lambda: len(followed.of("rebalance")) == 1, "the rebalance of the second member")
            wait_until(lambda: len(followed.of("rebalance")) == 2, "the rebalance without it")
    (report,) = followed.of("report")
    assert (report["state"], len(report["members"])) == ("Stable", 1)
    joined, gone = followed.of("rebalance")
    assert [one["cause"]["kind"] for one in (joined, gone)] == [
        "member joined",
        "member left or expired",
    ]
    assert [one["moves"]["moved"] for one in (joined, gone)] == [PARTITIONS // 2] * 2
    assert followed.of("entry")[-1]["to_state"] == "Stable"
    assert {"Metadata", "ApiVersions"} <= proxy.apis <= READS


def test_why_and_groups_commands_send_only_read_requests(cluster: tuple[str, RecordingProxy]) -> None:
    servers, proxy = cluster
    group = new_group()
    with closing(follow_member(servers, group, epochs=False)) as alone:
        share(alone)
        for command in (
            ["why", group],
            ["groups", "list", "--state"],
            ["groups", "describe", group, "--lag-seconds"],
        ):
            done = invoke(main, [*command, "--bootstrap-servers", proxy.address])
            assert done.exit_code == 0, done.output
    assert {"Fetch", "ListGroups", "ListOffsets"} <= proxy.apis <= READS
