# ruff: noqa: E501 - tables are as wide as on the terminal
"""The stored state, the state at a moment, and the list of groups with epochs."""

import copy
from datetime import UTC
from textwrap import dedent

from gateway.coordinator.groups import known_of
from kafka_why.groups.list_groups import list_row
from kafka_why.wording import Clock
from operations.replay.moment import moment_text
from operations.replay.replay import Replayed
from operations.stored.rows import rows_of
from operations.stored.text import group_text
from state.config import CoordinatorConfig
from state.kafka.context import KafkaGroup
from state.kafka.protocols import view_of
from state.kafka.share_group import ShareGroup
from tests.harness.histories import Recorder
from tests.unit.kafka_why.page_facts import looks
from tests.unit.kafka_why.test_why_epochs import MORNING

CONFIG = CoordinatorConfig()


def before(commands: tuple[str, ...], at: str) -> KafkaGroup:
    recorder = Recorder()
    recorder.play(*commands[: commands.index(f"at {at}")])
    group = recorder.any_group()
    assert group is not None
    return copy.deepcopy(group)


def moment_of(group: KafkaGroup) -> str:
    return f"{moment_text(Replayed('g', group=group), group.clock_ms, CONFIG, Clock(UTC))}\n"


def test_consumer_group_is_shown_as_tables() -> None:
    assert group_text(rows_of(before(MORNING, "30s"), 6, CONFIG)) == looks("""
GROUP PROTOCOL         STATE       SINCE                   GENERATION TARGET-EPOCH STRATEGY #MEMBERS #OFFSETS #LOCKS LAST-EVENT              NEXT-DEADLINE
g     Kafka (consumer) Reconciling 1970-01-01 00:00:14.000 5          5            uniform  4        0        0      1970-01-01 00:00:14.000 1970-01-01 00:00:57.000

  Last rebalance: 1970-01-01 00:00:12.000, member C subscribes to orders, prices

  MEMBER-ID INSTANCE-ID CLIENT-ID HOST ROLE   EXPIRES                 EPOCH STATE                ASSIGNMENT REVOKING   TARGET            SUBSCRIPTION
  A         -           A              member 1970-01-01 00:00:59.000 3     UnrevokedPartitions  orders:0,1 orders:2,3 orders:0,1        orders,prices
  B         -           B              member 1970-01-01 00:00:59.000 3     UnrevokedPartitions  orders:4,5 prices:0,1 orders:4,5        orders,prices
  C         till        C              member 1970-01-01 00:00:57.000 4     UnreleasedPartitions -          -          orders:3;prices:1 orders,prices
  D         -           D              member 1970-01-01 00:00:57.200 4     Stable               -          -          orders:2;prices:0 orders,prices

  TIMER     DEADLINE                MEMBER-ID
  heartbeat 1970-01-01 00:00:57.000 C
  heartbeat 1970-01-01 00:00:57.200 D
  heartbeat 1970-01-01 00:00:59.000 A
  heartbeat 1970-01-01 00:00:59.000 B
  rebalance 1970-01-01 00:01:14.000 A
  rebalance 1970-01-01 00:01:14.000 B
    """)


def test_moment_of_a_consumer_group_shows_members_and_timers() -> None:
    group = before(MORNING, "30s")
    text = moment_of(group)
    assert (
        text
        == looks("""
Group g at 1970-01-01 00:00:14.000 UTC: Reconciling for 0 ms, epoch 5, 4 members, assignor uniform
Last rebalance: began 1970-01-01 00:00:12.000, because member C subscribes to orders, prices

MEMBER          HOST       EPOCH STATE                     HOLDS           GIVES-UP        WAITS-FOR
A               -          3     has to give up partitions orders 0-1      orders 2-3      -
B               -          3     has to give up partitions orders 4-5      prices 0-1      -
C               -          4     waits for partitions      -               -               orders 3; prices 1
D               -          4     is not at its target yet  -               -               orders 2; prices 0

Timers:
    1970-01-01 00:00:57.000  in 43.0 s  the session of C ends
    1970-01-01 00:00:57.200  in 43.2 s  the session of D ends
    1970-01-01 00:00:59.000  in 45.0 s  the session of A ends
    1970-01-01 00:00:59.000  in 45.0 s  the session of B ends
    1970-01-01 00:01:14.000  in 60.0 s  A has to have given up its partitions
    1970-01-01 00:01:14.000  in 60.0 s  B has to have given up its partitions
    """)
        + "\n"
    )


def group_after(*commands: str) -> ShareGroup:
    recorder = Recorder()
    recorder.play("at 10s", "topics foo=2", "share A e0", "init watcher", "share A e2", *commands)
    group = recorder.any_group()
    assert isinstance(group, ShareGroup)
    return copy.deepcopy(group)


def test_share_partitions_are_rows_with_their_states() -> None:
    group = group_after(
        "topics foo=4", "topic-metadata watcher", "share A e3", "init watcher error=15 partitions[foo 3]"
    )
    (*_, two, three) = rows_of(group, 2, CONFIG).shares
    assert (two.state, two.start_offset, two.state_epoch, two.error_code) == ("initializing", 0, 4, None)
    assert (three.partition, three.error_code, three.task) == (3, 15, two.task)
    assert two.asked_at_ms == 10_000
    text = group_text(rows_of(group, 2, CONFIG))
    assert (
        "  TOPIC PARTITION STATE        TASK         ASKED                   STATE-EPOCH START-OFFSET ERROR"
        in text
    )
    assert (
        "  foo   3         initializing requests-0-4 1970-01-01 00:00:10.000 4           0            15"
        in text
    )
    deleting = rows_of(group_after("share A -1", "delete admin"), 2, CONFIG).shares
    assert [(row.partition, row.state) for row in deleting] == [(0, "deleting"), (1, "deleting")]


def test_moment_of_a_share_group_shows_partitions_and_tasks() -> None:
    group = group_after("topics foo=3", "topic-metadata watcher", "share A e3")
    text = moment_of(group)
    assert text == dedent("""\
        Group g at 1970-01-01 00:00:10.000 UTC: Stable for 0 ms, epoch 4, target assignment of epoch 3, 1 member
        Last rebalance: began 1970-01-01 00:00:10.000, because the topics that members subscribe to have changed

        MEMBER          HOST       EPOCH HAS             TARGET
        A               -          3     foo 0-1         foo 0-1

        Initialized: foo 0-1
        Initializing: foo 2
        Task: foo 2: initializing for 0 ms (task requests-0-4)

        Timers:
            1970-01-01 00:00:55.000  in 45.0 s  the session of A ends
            1970-01-01 00:01:10.000  in 60.0 s  tasks that the share coordinator has not done get an entry
        """)


def test_group_lists_include_share_groups() -> None:
    """Row SD5."""
    view = view_of(group_after())
    in_list = known_of(view)
    assert (in_list.state, in_list.protocol_type, in_list.group_type) == ("Stable", "share", "share")
    assert list_row(view).type == "Share"
