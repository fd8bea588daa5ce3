"""The command `groups` on a real broker, asking a real coordinator."""

import json
import shlex
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from itertools import zip_longest
from pathlib import Path
from typing import Any

import click
import pytest

from cli import main
from cli.assign import assign
from cli.groups import groups
from clients.barrier import wait_for_views
from clients.coordinator_client import CoordinatorClient
from clients.pending import AnyRequest, FutureRequest, R, resolve_futures
from embedded.broker import EmbeddedBroker
from kafka_why.connections import kafka_clients
from kafka_why.contract.kafka.history import EntryType
from kafka_why.contract.kafka.requests import JoinGroup, MemberAssignment, Protocol
from kafka_why.contract.layout import TopicLayout
from kafka_why.contract.messages import ErrorCode
from kafka_why.contract.protocols.subscriptions import (
    Assignment,
    Subscription,
    TopicPartition,
    encode_assignment,
    encode_subscription,
)
from operations.admin.requests import GroupRequests
from streaming.service.topics import prepare_topics
from tests.e2e.harness import create_topic, history_of, new_layout, offset_records, topic_id_of
from tests.harness.commands import invoke
from tests.harness.member_requests import sync_group
from tests.harness.shared import PREFIX

pytestmark = [pytest.mark.e2e, pytest.mark.one_form]

ORDERS, PRICES = "shop-orders", "shop-prices"
ORDERS_PARTITIONS, RECORDS = 3, 10
FIRST_MS, MINUTE_MS = 1_769_860_800_000, 60_000  # 2026-01-31T12:00:00Z, and a record a minute from then on

ANSWER_TIMEOUT_MS = 120_000
SESSION_TIMEOUT_MS = 1_800_000
JOIN_VERSION = 3  # the last that lets a new member in without asking for its id again


@dataclass(frozen=True)
class Said:
    """The output of a run of the command."""

    out: str
    err: str

    @property
    def rows(self) -> list[list[str]]:
        """The cells of a table's rows, none of which may contain blanks."""
        return [line.split() for line in self.out.splitlines() if line][1:]

    @property
    def json(self) -> Any:
        return json.loads(self.out)


Ask = Callable[..., Said]


@pytest.fixture(scope="module", autouse=True)
def topics(broker: EmbeddedBroker) -> None:
    servers, kept_for_ever = broker.client_config, {"retention.ms": "-1"}
    create_topic(servers, ORDERS, ORDERS_PARTITIONS, kept_for_ever)
    create_topic(servers, PRICES, 1, kept_for_ever)
    producer = kafka_clients.producer(servers)
    for number in range(RECORDS):
        for partition in range(ORDERS_PARTITIONS):
            stamp_ms = FIRST_MS + number * MINUTE_MS
            producer.send(ORDERS, value=b"order", partition=partition, timestamp_ms=stamp_ms)
    producer.close()


@pytest.fixture(scope="module")
def client(broker: EmbeddedBroker, layout: TopicLayout) -> Iterator[CoordinatorClient]:
    with CoordinatorClient(
        broker.client_config, layout, client_id="shop", request_timeout_ms=ANSWER_TIMEOUT_MS
    ) as client:
        yield client


@pytest.fixture
def ask(broker: EmbeddedBroker, layout: TopicLayout) -> Ask:
    """Return a function that runs the command. `pytest -s` shows the command and its output."""

    def run(*arguments: str, prefix: str = PREFIX, exit_code: int = 0) -> Said:
        verb, *others = arguments
        where = ["--bootstrap-servers", broker.bootstrap_servers, "--prefix", prefix]
        result = invoke(groups, [verb, *where, *others])
        click.echo(
            f"\n$ groups {shlex.join(arguments)}\n{result.output[:4_000]}(exit code {result.exit_code})"
        )
        assert result.exit_code == exit_code, result.output
        return Said(result.stdout, result.stderr)

    return run


def form(
    client: CoordinatorClient,
    group_id: str,
    assignments: Sequence[Sequence[TopicPartition]],
    *instance_ids: str | None,
) -> list[str]:
    """Form a Stable group with as many members as assignments. Return their ids in order. The JoinGroups are
    one packed record, so that no pause between them ends the initial delay.
    """
    joins = [
        join_of(client, group_id, assigned, instance_id)
        for assigned, instance_id in zip_longest(assignments, instance_ids)
    ]
    answers = answers_together(client, joins)
    assert {(answer.error_code, answer.generation_id) for answer in answers} == {(ErrorCode.NONE, 1)}
    given = [
        MemberAssignment(answer.member_id, encode_assignment(Assignment(tuple(assigned))))
        for answer, assigned in zip(answers, assignments, strict=True)
    ]
    syncs = [
        sync_group(client, group_id, 1, answer.member_id, given if answer.member_id == answer.leader else ())
        for answer in answers
    ]
    assert all(sync.result().error_code is ErrorCode.NONE for sync in syncs)
    return [answer.member_id for answer in answers]


def join_of(
    client: CoordinatorClient, group_id: str, assigned: Sequence[TopicPartition], instance_id: str | None
) -> JoinGroup:
    topics = tuple(dict.fromkeys(partition.topic for partition in assigned))
    return JoinGroup(
        **client.header(group_id, JOIN_VERSION),
        session_timeout_ms=SESSION_TIMEOUT_MS,
        rebalance_timeout_ms=SESSION_TIMEOUT_MS,
        group_instance_id=instance_id,
        protocol_type="consumer",
        protocols=[Protocol("range", encode_subscription(Subscription(topics)))],
    )


def answers_together(client: CoordinatorClient, requests: Sequence[AnyRequest[R]]) -> list[R]:
    """Send requests of one group in one packed record, and wait for their answers."""
    asked = [
        FutureRequest(request, time.monotonic(), ANSWER_TIMEOUT_MS, resolve_futures, future=Future())
        for request in requests
    ]
    client.send_all(asked)
    return [request.future.result() for request in asked]


def orders(*numbers: int) -> list[TopicPartition]:
    return [TopicPartition(ORDERS, number) for number in numbers]


def commit(client: CoordinatorClient, group_id: str, offsets: dict[TopicPartition, int]) -> None:
    errors = GroupRequests(client).commit_offsets({group_id: offsets})
    assert set(errors[group_id].values()) == {ErrorCode.NONE}


@pytest.fixture(scope="module")
def billing(client: CoordinatorClient) -> list[str]:
    """Return the members of a Stable group, which also has an offset of a topic outside its assignments.
    "audit" is a group that has only offsets.
    """
    commit(client, "billing", dict.fromkeys([*orders(0, 1, 2), TopicPartition(PRICES, 0)], 4))
    commit(client, "audit", dict.fromkeys(orders(0), 7))
    members = form(client, "billing", [orders(0, 2), orders(1)], "pod-0")
    wait_for_views(client)
    return members


def test_groups_list_includes_empty_groups(ask: Ask, billing: list[str]) -> None:
    both = {"audit", "billing"}  # the coordinator has groups of other tests too
    assert [name for name in ask("list").out.splitlines() if name in both] == ["audit", "billing"]
    # Where one of RocketMQ's is among them, the table has more columns.
    assert [row[:3] for row in ask("list", "--state", "--type").rows if row[0] in both] == [
        ["audit", "Classic", "Empty"],
        ["billing", "Classic", "Stable"],
    ]
    stable = [row[:2] for row in ask("list", "--state", "stable").rows if row[0] in both]
    assert stable == [["billing", "Stable"]]
    assert not [row for row in ask("list", "--type", "consumer").rows if row[0] in both]
    listed = [group for group in ask("list", "-o", "json").json if group["group"] in both]
    assert [(group["group"], group["protocol_type"]) for group in listed] == [
        ("audit", ""),
        ("billing", "consumer"),
    ]


def test_groups_describe_shows_members_and_offsets(
    ask: Ask, client: CoordinatorClient, billing: list[str]
) -> None:
    (first, second), host = billing, client.header("")["client_host"]
    assert ask("describe", "billing").rows == [
        ["billing", ORDERS, "0", "4", "10", "6", first, host, "shop"],
        ["billing", ORDERS, "2", "4", "10", "6", first, host, "shop"],
        ["billing", ORDERS, "1", "4", "10", "6", second, host, "shop"],
        ["billing", PRICES, "0", "4", "0", "0", "-", "-", "-"],
    ]
    assert ask("describe", "billing", "--members", "--verbose").rows == [
        ["billing", first, "pod-0", host, "shop", "2", f"{ORDERS}:0,2"],
        ["billing", second, host, "shop", "1", f"{ORDERS}:1"],
    ]
    minutes = f"{(RECORDS - 1 - 4) * MINUTE_MS / 1000}"  # from the record at offset 4 to the newest
    assert [row[5:7] for row in ask("describe", "billing", "--lag-seconds").rows] == [
        *[["6", minutes]] * 3,
        ["0", "0.0"],
    ]
    assert [row[-2:] for row in ask("describe", "billing", "--members", "--lag-seconds").rows] == [
        ["12", minutes],
        ["6", minutes],
    ]
    timed = ask("describe", "billing", "--state", "--lag-seconds", "-o", "json").json
    assert [state["behind"] for state in timed] == [{"lag": 18, "lag_seconds": float(minutes)}]
    page = ("--page-url", "http://127.0.0.1:8080")
    linked = ask("describe", "billing", *page)
    assert linked.rows == ask("describe", "billing").rows
    assert linked.err.endswith("\nhttp://127.0.0.1:8080/group?id=billing\n")
    assert ask("describe", "--all-groups", *page).err.endswith("\nhttp://127.0.0.1:8080/\n")
    state = ["billing", f"{PREFIX}-requests", "(0)", "range", "Stable", "2", "Classic"]
    assert ask("describe", "billing", "--state").rows == [state]


def test_assign_shows_the_moves_caused_by_removing_a_member(
    broker: EmbeddedBroker, layout: TopicLayout, billing: list[str]
) -> None:
    where = ["--bootstrap-servers", broker.bootstrap_servers, "--prefix", PREFIX]
    where += ["--timeout", str(ANSWER_TIMEOUT_MS)]
    question = [*where, "--from-group", "billing", "--without", "pod-0", "--strategy", "sticky"]
    result = invoke(assign, [*question, "-o", "json"])
    now, sticky = json.loads(result.stdout)
    assert {share["member_id"]: share["assignment"] for share in now["shares"]} == {
        billing[0]: {ORDERS: [0, 2]},
        billing[1]: {ORDERS: [1]},
    }
    assert [(share["partitions"], share["weight"]) for share in now["shares"]] == [(2, 12), (1, 6)]
    assert [share["assignment"] for share in sticky["shares"]] == [{ORDERS: [0, 1, 2]}]
    assert (sticky["moves"]["moved"], sticky["moves"]["needless"]) == (2, 0)
    result = invoke(main, ["assign", *where, "--from-group", "nobody"])
    assert (result.exit_code, result.stderr) == (1, "Error: group nobody does not exist\n")


def test_groups_delete_removes_groups_and_reports_refusals(ask: Ask, client: CoordinatorClient) -> None:
    commit(client, "short-lived", dict.fromkeys(orders(0), 7))
    gone = ask("delete", "short-lived", "nobody")
    assert gone.out == "\nThese consumer groups were deleted successfully: 'short-lived'\n"
    assert "* Group 'nobody' could not be deleted due to: GROUP_ID_NOT_FOUND" in gone.err
    missing = Said("", "Error: Consumer group 'short-lived' does not exist.\n")
    assert ask("describe", "--group", "short-lived") == missing


def test_remove_members_command_records_its_reason(
    ask: Ask, client: CoordinatorClient, broker: EmbeddedBroker, layout: TopicLayout
) -> None:
    _, second, _ = form(client, "shipping", [orders(0), orders(1), orders(2)], "pod-0")
    removal = ["remove-members", "--group", "shipping", "--reason", "the machine is gone"]
    rows = ask(*removal, "--instance-id", "pod-0", "--member-id", "no-such-member").rows
    assert [row[1:4] for row in rows] == [["no-such-member", "-", "Error:"], ["-", "pod-0", "Successful"]]
    assert len(ask("describe", "--group", "shipping", "--members", "-o", "json").json[0]["members"]) == 2
    assert second in ask(*removal, "--all-members").out
    assert ask("describe", "--group", "shipping").err == "Consumer group 'shipping' has no active members.\n"
    removed = [
        event.client_reason
        for event in history_of(broker.client_config, layout, "shipping")
        if event.type is EntryType.MEMBER_REMOVED
    ]
    assert removed == ["member was removed by an admin: the machine is gone"] * 3
    ask("delete", "--group", "shipping")


def test_offset_reset_can_be_executed_exported_and_read_from_a_file(
    ask: Ask, client: CoordinatorClient, broker: EmbeddedBroker, layout: TopicLayout, tmp_path: Path
) -> None:
    commit(client, "ledger", dict.fromkeys(orders(0, 1), 4))
    reset = ["reset-offsets", "--group", "ledger"]
    planned = ask(*reset, "--topic", f"{ORDERS}:0,1,2", "--to-current")
    assert [row[3] for row in planned.rows] == ["4", "4", "10"]
    assert planned.err == "WARN: No action will be performed as the --execute option is missing.\n"

    shifted = ask(*reset, "--all-topics", "--shift-by", "-5", "--execute")
    assert [row[3] for row in shifted.rows] == ["0", "0"]
    assert shifted.err.count("is lower than earliest offset for topic partition") == 2
    assert [row[3] for row in ask("describe", "--group", "ledger").rows] == ["0", "0"]
    of_topics = {str(o.topic_id) for o in offset_records(broker.client_config, layout, "ledger")}
    assert of_topics == {topic_id_of(broker.client_config, ORDERS)}
    unshifted = ask(*reset, "--topic", ORDERS, "--shift-by", "1", "--execute", exit_code=1)
    assert "Cannot shift offset for partition" in unshifted.err
    unknown = ask(*reset, "--topic", f"{ORDERS}:1,9", "--to-latest", "--execute", exit_code=1)
    assert f'UNKNOWN_TOPIC_OR_PARTITION: The partitions "{ORDERS}-9" do not exist' in unknown.err

    plan = tmp_path / "plan.csv"
    plan.write_text(ask(*reset, "--all-topics", "--to-offset", "6", "--dry-run", "--export").out)
    assert plan.read_text() == f"{ORDERS},0,6\n{ORDERS},1,6\n"
    again = ask(*reset, "--from-file", str(plan), "--execute", "-o", "json").json
    assert [row["new_offset"] for row in again] == [6, 6]
    every = ask("reset-offsets", "--all-groups", "--all-topics", "--to-current", "--dry-run", "--export").out
    assert f"ledger,{ORDERS},0,6\nledger,{ORDERS},1,6\n" in every
    assert "report" not in every, "a dry run makes no group"
    assert ask("delete", "--group", "ledger").out == (
        "Deletion of requested consumer groups ('ledger') was successful.\n"
    )


def test_unresponsive_coordinator_is_named_and_list_still_works(ask: Ask, broker: EmbeddedBroker) -> None:
    quiet = new_layout()
    prepare_topics(broker.client_config, quiet)
    prefix = quiet.requests_topic.removesuffix("-requests")
    late = ask("describe", "--group", "g", "--timeout", "3000", prefix=prefix, exit_code=1)
    assert "for group 'g' had no answer within 3000 ms. Is the coordinator" in late.err
    assert ask("list", prefix=prefix).out == "", "the list needs no coordinator"
    assert "has the coordinator been started?" in ask("list", prefix="none", exit_code=1).err
