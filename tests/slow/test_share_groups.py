"""Share groups (KIP-932) of the brokers through the gateway, with Kafka's own tools."""

from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.e2e.gateway_clients import PARTITIONS, new_group, produce
from tests.e2e.harness import wait_until
from tests.harness.java_tools import ConsoleConsumer, JavaTools

pytestmark = pytest.mark.e2e

FIRST, SECOND = range(PARTITIONS * 2), range(100, 100 + PARTITIONS * 4)


def wait_for(values: range, *consumers: ConsoleConsumer) -> list[set[int]]:
    """Wait until the consumers have printed all of these, and return what each printed."""
    got: list[set[int]] = [set() for _ in consumers]

    def are_there() -> bool:
        for consumer, mine in zip(consumers, got, strict=True):
            mine.update(consumer.poll())
        return set().union(*got) >= set(values)

    wait_until(are_there, f"the consumers have {values}")
    return got


def test_kafkas_share_consumers_and_tools(gateway: str, topic: str, tmp_path: Path) -> None:
    """The group's setting reaches the leader: without it the group would begin at the end of the topic. A
    consumer that is killed loses nothing. The group is shown, deleted, and then is not there.
    """
    tools, group = JavaTools(gateway, tmp_path), new_group()
    produce(gateway, topic, FIRST)
    setting = "share.auto.offset.reset=earliest"
    tools.configs("--alter", "--entity-type", "groups", "--entity-name", group, "--add-config", setting)
    with ExitStack() as stack:
        first = stack.enter_context(tools.console_share_consumer(group, topic))
        wait_for(FIRST, first)
        second = stack.enter_context(tools.console_share_consumer(group, topic))
        wait_until(
            lambda: tools.share_groups("--describe", "--members", "--group", group).count(topic) == 2,
            "both are members",
        )
        first.kill()
        produce(gateway, topic, SECOND)
        wait_for(SECOND, second)
        described = tools.share_groups("--describe", "--offsets", "--group", group)
        assert [line.split()[:3] for line in described.splitlines() if topic in line] == [
            [group, topic, str(partition)] for partition in range(PARTITIONS)
        ]
    assert group in tools.share_groups("--list").split()
    wait_until(
        lambda: "was successful" in tools.share_groups("--delete", "--group", group), "the group is deleted"
    )
    assert group not in tools.share_groups("--list").split()
