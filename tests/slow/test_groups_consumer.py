"""The commands about a group of the consumer protocol, with a real broker and the coordinator's query: a
topic grows, the watcher says so, and the commands tell what became of it.
"""

import shlex
from contextlib import closing

import click
import pytest
from kafka import KafkaAdminClient

from cli import main
from embedded.broker import EmbeddedBroker
from kafka_why.contract.layout import TopicLayout
from tests.e2e.gateway_clients import PARTITIONS, ConfluentMember
from tests.e2e.harness import wait_until
from tests.harness.commands import invoke
from tests.harness.transactions import Wire

pytestmark = pytest.mark.e2e

DESCRIBE = 69
MORE = 2


def test_group_commands_show_a_consumer_group(
    wire: Wire,
    gateway: str,
    broker: EmbeddedBroker,
    layout: TopicLayout,
    admin: KafkaAdminClient,
    topic: str,
    group: str,
) -> None:
    def run(command: str) -> str:
        prefix = layout.groups_topic.removesuffix("-groups")
        where = ["--bootstrap-servers", broker.bootstrap_servers, "--prefix", prefix]
        result = invoke(main, [*shlex.split(command), *where])
        click.echo(f"\n$ {command}\n{result.output[:4_000]}")
        assert result.exit_code == 0, result.output
        return result.output

    def joined() -> ConfluentMember:
        return ConfluentMember(gateway, group, topic, is_of_consumer_protocol=True)

    with closing(joined()) as first, closing(joined()) as second:

        def has_settled(partitions: int) -> bool:
            (described,) = wire.ask(DESCRIBE, 1, group_ids=[group]).groups
            held = len(first.partitions()) + len(second.partitions())
            return (described.group_state, held) == ("Stable", partitions)

        wait_until(lambda: has_settled(PARTITIONS), "all partitions of the topic for two members")
        admin.create_partitions({topic: PARTITIONS + MORE})
        wait_until(lambda: has_settled(PARTITIONS + MORE), "the topic's new partitions")

        def is_listed() -> bool:
            """Return the commands read the query's topics, which follow the answers of its replica."""
            listed = [line.split()[:3] for line in run("groups list --type --state").splitlines()]
            return [group, "Consumer", "Stable"] in listed

        wait_until(is_listed, "the group in the list")
        members = run(f"groups describe --group {group} --members --verbose")
        (described,) = wire.ask(DESCRIBE, 1, group_ids=[group]).groups
        epoch, member_id = str(described.group_epoch), first.do(first.consumer.memberid)
        (line,) = [line.split() for line in members.splitlines() if member_id in line]
        held = f"{topic}:{','.join(map(str, sorted(first.partitions())))}"
        assert line[-5:] == [epoch, held, epoch, held, topic]
        state = run(f"groups describe --group {group} --state").splitlines()[-1].split()
        assert state[-6:] == ["uniform", "Stable", epoch, epoch, "2", "Consumer"]
        assert run(f"groups describe --group {group}").count(f" {topic} ") == PARTITIONS + MORE
        why = run(f"why {group}")
        assert f"Group {group} is Stable" in why
        assert f"in the cluster: {topic} has {PARTITIONS + MORE} partitions" in why
        assert f"{PARTITIONS + MORE} partitions" in run(f"assign --from-group {group} --strategy uniform")
