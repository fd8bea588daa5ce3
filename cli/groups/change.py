"""`groups delete`, `delete-offsets`, `remove-members`, `release`, `abort-pending`: the subcommands that
change a group.
"""

import time
from collections.abc import Collection, Iterator, Sequence
from functools import cached_property

import click

from clients.coordinator_client import CoordinatorClient
from clients.pending import RequestTimedOut
from kafka_why.cli.groups.common import (
    Cluster,
    connection_options,
    group_options,
    output_option,
    show_errors,
    show_table,
)
from kafka_why.cli.output import show, show_json, show_stderr
from kafka_why.cli.parameters import INT64, ParsedOption
from kafka_why.contract.codec import PendingTransaction
from kafka_why.contract.history_reader import AnyView
from kafka_why.contract.kafka.requests import LeavingMember
from kafka_why.contract.messages import ErrorCode
from kafka_why.contract.protocols.subscriptions import TopicPartition
from kafka_why.groups.gather import GroupDescriber, KnownTypes, describe_groups
from kafka_why.groups.list_groups import (
    ChosenPartitions,
    TopicChoice,
    choose_partitions,
    parse_topic,
    pending_transactions,
)
from kafka_why.groups.render import (
    UNKNOWN_TOPIC_OR_PARTITION,
    OffsetDeletion,
    Removal,
    error_name,
    error_text,
    offset_deletion_table,
    pending_table,
    removal_table,
)
from kafka_why.wording import visible_text
from operations.admin.requests import GroupRequests, ObservedGroups, PartitionErrors, Removed

CLIENT_ID = "group-coordinator-groups"


class CoordinatorCluster(Cluster):
    """A cluster with a coordinator of this project, whose groups can be changed.

    If it has an observer instead, groups can only be read.
    """

    @cached_property
    def requests(self) -> GroupRequests:
        """The client that sends an administrator's requests. An observer's client can only read."""
        if self.layout.is_observed:
            return ObservedGroups(self._client_config, self.layout, self._timeout_ms)
        client = CoordinatorClient(
            self._client_config, self.layout, client_id=CLIENT_ID, request_timeout_ms=self._timeout_ms
        )
        return GroupRequests(self._stack.enter_context(client))

    @property
    def describer(self) -> GroupDescriber:
        """The source of descriptions: the coordinator or the observer, or else the brokers' own
        `__consumer_offsets`.
        """
        return self.requests if self.has_topics else super().describer

    def answered_groups(self) -> list[AnyView]:
        """Return the groups with every change that the coordinator has acknowledged."""
        self.requests.wait_for_views()
        return self.groups()

    def pending_transactions(self) -> list[PendingTransaction]:
        """Return the pending transactions, with every change that the coordinator has acknowledged."""
        self.requests.wait_for_views()
        return pending_transactions(self._client_config, self.layout, self._timeout_ms)

    def reason(self, error: Exception) -> str:
        """Return why a command failed. If the coordinator did not answer in time, add a hint."""
        if isinstance(error, RequestTimedOut):
            return (
                f"{error}. Is the coordinator with the topics {self._prefix}-* running? See also --timeout."
            )
        return super().reason(error)


@click.command()
@connection_options
@group_options
@output_option
def delete(cluster: CoordinatorCluster, named: Sequence[str], all_groups: bool, output: str) -> None:
    """Delete groups that have no members, with their offsets."""
    outcomes = cluster.requests.delete_groups(cluster.chosen_groups(named, all_groups))
    errors = {group_id: error_name(code) for group_id, code in outcomes.items()}
    if output == "json":
        show_json([{"group": group_id, "error": error} for group_id, error in errors.items()])
        return
    failed = {group_id: error for group_id, error in errors.items() if error is not None}
    deleted = ", ".join(f"'{group_id}'" for group_id in errors if group_id not in failed)
    if not failed:
        show(f"Deletion of requested consumer groups ({deleted}) was successful.")
        return
    show_stderr("Error: Deletion of some consumer groups failed:")
    for group_id, error in failed.items():
        show_stderr(f"* Group '{group_id}' could not be deleted due to: {error_text(error)}")
    if deleted:
        show(visible_text(["", f"These consumer groups were deleted successfully: {deleted}"]))


@click.command("delete-offsets")
@connection_options
@group_options
@click.option(
    "--topic",
    "topics",
    required=True,
    multiple=True,
    metavar="TOPIC[:P,P]",
    type=ParsedOption("TOPIC", parse_topic),
    help="A topic, or partitions of it; repeatable.",
)
@output_option
def delete_offsets(
    cluster: CoordinatorCluster,
    named: Sequence[str],
    all_groups: bool,
    topics: Sequence[TopicChoice],
    output: str,
) -> None:
    """Delete offsets of topics that no member subscribes to."""
    chosen = choose_partitions(topics, cluster.log.existing({choice.topic for choice in topics}))
    answers = []
    for group_id, error, rows in _delete_offsets(cluster, cluster.chosen_groups(named, all_groups), chosen):
        answers.append({"group": group_id, "error": error, "partitions": rows})
        if output == "table":
            _show_deletion(group_id, error, rows)
    if output == "json":
        show_json(answers)


def _delete_offsets(
    cluster: CoordinatorCluster, group_ids: Collection[str], chosen: ChosenPartitions
) -> Iterator[tuple[str, str | None, list[OffsetDeletion]]]:
    """Yield each group with its error and its partitions' outcomes."""
    # No request is sent for a partition that does not exist.
    answers = cluster.requests.delete_offsets(group_ids, chosen.partitions) if chosen.partitions else {}
    for group_id in group_ids:
        code, errors = answers.get(group_id, (ErrorCode.NONE, PartitionErrors()))
        yield group_id, error_name(code), _deletion_rows(code, errors, chosen)


def _deletion_rows(
    code: ErrorCode, errors: PartitionErrors, chosen: ChosenPartitions
) -> list[OffsetDeletion]:
    """Return the outcome of each chosen partition. `code` applies to those without their own error."""
    outcomes: dict[TopicPartition, str | None] = dict.fromkeys(chosen.missing, UNKNOWN_TOPIC_OR_PARTITION)
    outcomes |= {p: error_name(errors.get(p, code)) for p in chosen.partitions}
    return [
        # Partition -1 stands for a missing topic.
        OffsetDeletion(topic=p.topic, partition=None if p.partition == -1 else p.partition, error=error)
        for p, error in sorted(outcomes.items())
    ]


def _show_deletion(group_id: str, error: str | None, rows: Sequence[OffsetDeletion]) -> None:
    if error is not None:
        show_stderr(f"Error: Offsets of group '{group_id}' were not deleted due to: {error_text(error)}")
    elif any(row.error is not None for row in rows):
        show_stderr("Error: Encountered some partition-level error, see the follow-up details.")
    else:
        show(f"Request succeeded for deleting offsets from group {group_id}.")
    show_table(offset_deletion_table(rows))


@click.command("remove-members")
@connection_options
@group_options
@click.option("--member-id", "member_ids", multiple=True, help="A member's id; repeatable.")
@click.option(
    "--instance-id", "instance_ids", multiple=True, help="A static member's instance id; repeatable."
)
@click.option("--all-members", is_flag=True, help="All members of the group.")
@click.option("--reason", help="The reason, for the group's history.")
@output_option
def remove_members(
    cluster: CoordinatorCluster,
    named: Sequence[str],
    all_groups: bool,
    member_ids: Sequence[str],
    instance_ids: Sequence[str],
    all_members: bool,
    reason: str | None,
    output: str,
) -> None:
    """Remove members from groups at once, as if they had left.

    A member whose process still runs joins again.
    """
    members = [
        *(LeavingMember(member_id=name) for name in member_ids),
        *(LeavingMember(group_instance_id=name) for name in instance_ids),
    ]
    if bool(members) == all_members:
        raise click.UsageError("takes --member-id and --instance-id, or --all-members")
    groups = cluster.chosen_groups(named, all_groups)
    to_remove = _members_of(cluster.requests, groups) if all_members else dict.fromkeys(groups, members)
    # A request without members is not sent.
    outcomes = cluster.requests.remove_members(
        {g: leavers for g, leavers in to_remove.items() if leavers}, reason
    )
    rows = [row for g, outcome in outcomes.items() for row in _removal_rows(g, to_remove[g], outcome)]
    if output == "json":
        show_json(rows)
    elif rows:
        show_table(removal_table(rows))


def _members_of(requests: GroupRequests, groups: KnownTypes) -> dict[str, list[LeavingMember]]:
    """Return the present members of each group. Show an error for each group that cannot be described."""
    described = describe_groups(requests, groups)
    show_errors(described.refusals())
    return {
        group_id: [LeavingMember(m.member_id, m.group_instance_id) for m in group.members]
        for group_id, group in described.groups.items()
    }


def _removal_rows(group_id: str, members: Sequence[LeavingMember], removed: Removed) -> list[Removal]:
    code, errors = removed
    outcomes = errors or [code] * len(members)  # if no member has its own error, the group's applies to each
    return [
        Removal(
            group=group_id,
            consumer_id=member.member_id or None,
            group_instance_id=member.group_instance_id,
            error=error_name(outcome),
        )
        for member, outcome in zip(members, outcomes, strict=True)
    ]


@click.command()
@connection_options
@group_options
@output_option
def release(cluster: CoordinatorCluster, named: Sequence[str], all_groups: bool, output: str) -> None:
    """Release quarantined groups of either protocol.

    Release a group after the cause of the fault is gone. A group that is not quarantined stays unchanged.
    --all-groups releases every group that the groups topic shows as quarantined.
    """
    group_ids = list(dict.fromkeys(named))
    if all_groups:
        group_ids = [g.group_id for g in cluster.answered_groups() if g.quarantined is not None]
    outcomes = cluster.requests.release_groups(group_ids)
    errors = {group_id: error_name(code) for group_id, code in outcomes.items()}
    if output == "json":
        show_json([{"group": group_id, "error": error} for group_id, error in errors.items()])
        return
    for group_id, error in errors.items():
        if error is None:
            show(f"Group '{group_id}' is not quarantined now.")
        else:
            show_stderr(f"Error: Group '{group_id}' could not be released due to: {error_text(error)}")
    if not errors:
        show_stderr("No group is quarantined.")


@click.command("abort-pending")
@connection_options
@group_options
@click.option(
    "--transactional-id",
    "transactional_ids",
    multiple=True,
    help="Only of this transactional id; repeatable.",
)
@click.option("--producer-id", "producer_ids", type=INT64, multiple=True, help="Only of this producer id.")
@click.option("--execute", is_flag=True, help="Drop them. Without it they are only shown.")
@output_option
def abort_pending(
    cluster: CoordinatorCluster,
    named: Sequence[str],
    all_groups: bool,
    transactional_ids: Sequence[str],
    producer_ids: Sequence[int],
    execute: bool,
    output: str,
) -> None:
    """Show offsets that are pending in transactions, and with --execute drop them.

    Drop only offsets of a transaction that the brokers have aborted, or will never end (see
    `kafka-transactions describe` and `abort`). If the brokers commit it, its records are visible and its
    offsets are lost, so its input is processed twice.
    """
    chosen = [
        pending
        for pending in cluster.pending_transactions()
        if (all_groups or pending.group_id in named)
        and (not transactional_ids or pending.transactional_id in transactional_ids)
        and (not producer_ids or pending.producer_id in producer_ids)
    ]
    errors = (
        [error_name(code) for code in cluster.requests.abort_pending(chosen)]
        if execute and chosen
        else [None] * len(chosen)
    )
    if output == "json":
        show_json(
            [
                {
                    "group": pending.group_id,
                    "transactional_id": pending.transactional_id,
                    "producer_id": pending.producer_id,
                    "producer_epoch": pending.producer_epoch,
                    "partitions": pending.partitions,
                    "since_ms": pending.at_ms,
                    "dropped": execute and error is None,
                    "error": error,
                }
                for pending, error in zip(chosen, errors, strict=True)
            ]
        )
        return
    if not chosen:
        show_stderr("No offset is pending in a transaction.")
        return
    show_table(pending_table(chosen, round(time.time() * 1000)))
    if not execute:
        show_stderr("Nothing was dropped: --execute is not given.")
    for pending, error in zip(chosen, errors, strict=True):
        if error is not None:
            show_stderr(
                f"Error: Offsets of group '{pending.group_id}' in transaction '{pending.transactional_id}' "
                f"were not dropped due to: {error_text(error)}"
            )
