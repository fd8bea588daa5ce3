"""The options, connections and output functions that the subcommands of `groups` share."""

import functools
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import cached_property
from typing import Any, TypeVar

import click
from kafka.errors import KafkaError

from kafka_why.cli.output import show, show_stderr
from kafka_why.cli.parameters import Command, WholeNumber, cluster_options, prefix_option, with_options
from kafka_why.connections.client_config import ClientConfig
from kafka_why.contract.history_reader import AnyView
from kafka_why.contract.kafka.snapshot import GroupSnapshot
from kafka_why.contract.layout import DEFAULT_PREFIX, KAFKAS_OFFSETS_TOPIC, TopicLayout
from kafka_why.contract.protocols.subscriptions import TopicPartition
from kafka_why.groups.gather import (
    Answers,
    GroupDescriber,
    KnownTypes,
    LogOffsets,
    TopicGroupDescriber,
    dead_group,
)
from kafka_why.groups.list_groups import (
    GroupListRow,
    GroupOffsets,
    OffsetWithEpoch,
    consumer_groups,
    list_broker_groups,
    list_groups,
    list_row,
)
from kafka_why.observed.consumer_offsets.schemas import kafka_partition
from kafka_why.observed.view import view_of
from kafka_why.partitioner import partition_of
from kafka_why.topic_reader import ClientError, TopicsMissing, layout_on, names_on
from kafka_why.why.offsets_topic import OffsetsTopic
from kafka_why.wording import VisibleText, visible_text


class BrokersGroups(GroupDescriber):
    """A describer of the groups of the cluster's own coordinator, from `__consumer_offsets`."""

    def __init__(self, client_config: ClientConfig) -> None:
        self._client_config = client_config

    def describe(
        self, groups: KnownTypes, *, with_offsets: bool = False
    ) -> tuple[Answers, dict[str, GroupOffsets]]:
        """Return the descriptions of the groups, and their committed offsets.

        Raises HistoryUnavailable, KafkaError.
        """
        with OffsetsTopic(self._client_config) as topic:
            stored = {group_id: topic.read_group(group_id) for group_id in groups}
        names = names_on(self._client_config).known
        answers: Answers = {
            group_id: dead_group(group_id) if group is None else view_of(group, names)
            for group_id, group in stored.items()
        }
        offsets = {group_id: {} if group is None else group.offsets for group_id, group in stored.items()}
        return answers, {
            group_id: GroupOffsets(
                {
                    TopicPartition(topic, number): OffsetWithEpoch(offset.offset, offset.leader_epoch)
                    for topic, partitions in topics.items()
                    for number, offset in partitions.items()
                }
            )
            for group_id, topics in offsets.items()
        }


DEFAULT_TIMEOUT_MS = 30_000


class Cluster:
    """A read-only view of a cluster and its groups. Each connection is made at its first use."""

    def __init__(self, stack: ExitStack, client_config: ClientConfig, prefix: str, timeout_ms: int) -> None:
        self._stack = stack
        self._client_config = client_config
        self._prefix = prefix
        self._timeout_ms = timeout_ms

    @cached_property
    def layout(self) -> TopicLayout:
        """The coordinator's topics. Raises TopicsMissing, and GatewayAddress at a gateway."""
        return layout_on(self._client_config, self._prefix)

    @cached_property
    def has_topics(self) -> bool:
        """True if the cluster has the topics of a coordinator of this project, or of an observer.

        Raises GatewayAddress at a gateway. If the user has chosen a prefix, raises TopicsMissing instead of
        returning False.
        """
        try:
            return bool(self.layout)
        except TopicsMissing:
            if self._prefix != DEFAULT_PREFIX:
                raise
            return False

    @property
    def describer(self) -> GroupDescriber:
        """The source of descriptions: the groups topic or, without it, the brokers' `__consumer_offsets`."""
        if self.has_topics:
            return TopicGroupDescriber(self._client_config, self.layout, self._timeout_ms)
        return BrokersGroups(self._client_config)

    def list_rows(self) -> list[GroupListRow]:
        """Return the rows of all groups, of every protocol type."""
        if not self.has_topics:
            return list_broker_groups(self._client_config)
        return [list_row(group) for group in self.groups()]

    def storage_of(self, group_id: str) -> tuple[str, int]:
        """Return the topic and the partition that store the group."""
        if not self.has_topics:
            return KAFKAS_OFFSETS_TOPIC, kafka_partition(group_id, self._offsets_partitions)
        layout = self.layout
        topic = layout.groups_topic if layout.is_observed else layout.requests_topic
        return topic, partition_of(group_id, layout.request_partitions)

    @cached_property
    def _offsets_partitions(self) -> int:
        with OffsetsTopic(self._client_config) as offsets:
            return offsets.partitions

    @cached_property
    def log(self) -> LogOffsets:
        """The reader of log offsets from the broker."""
        return self._stack.enter_context(LogOffsets(self._client_config, self._timeout_ms))

    def groups(self) -> list[AnyView]:
        """Return all groups, of every protocol type, as the groups topic has them now."""
        return list_groups(self._client_config, self.layout, self._timeout_ms)

    def answered_groups(self) -> list[AnyView]:
        """Return all groups, as `groups` does.

        A subclass that can send requests to the coordinator waits until the topic has every change that the
        coordinator has acknowledged.
        """
        return self.groups()

    def chosen_groups(self, named: Sequence[str], all_groups: bool, *, rocketmq: bool = False) -> KnownTypes:
        """Return the groups that the user names or selects by `--all-groups`, each with its type or None.

        `--all-groups` includes RocketMQ's groups only if `rocketmq` is true.
        """
        if not all_groups:
            return dict.fromkeys(named)
        if not self.has_topics:
            return {row.group: None for row in self.list_rows() if row.is_of_consumers}
        return {
            group.group_id: group.group_type if isinstance(group, GroupSnapshot) else None
            for group in consumer_groups(self.answered_groups())
            if rocketmq or isinstance(group, GroupSnapshot)
        }

    def reason(self, error: Exception) -> str:
        """Return why a command failed, in words for its user."""
        return str(error) or type(error).__name__


C = TypeVar("C", bound=Cluster)


@contextmanager
def connected(kind: type[C], client_config: ClientConfig, prefix: str, timeout_ms: int) -> Iterator[C]:
    """Yield a cluster of class `kind`, whose connections stay open during the block.

    A connection error ends the command.
    """
    with ExitStack() as stack:
        cluster: C = kind(stack, client_config, prefix, timeout_ms)
        try:
            yield cluster
        except (ClientError, KafkaError) as error:
            raise failure(cluster.reason(error)) from error


def failure(reason: str) -> click.ClickException:
    """Return the error of a command that could not be carried out."""
    return click.ClickException(f"Executing consumer group command failed due to {reason}")


timeout_option = click.option(
    "--timeout",
    "timeout_ms",
    type=WholeNumber(1),
    metavar="MS",
    default=DEFAULT_TIMEOUT_MS,
    show_default=True,
    help="The time to wait for each answer of the coordinator, in milliseconds.",
)


def connection_options(command: Command) -> Command:
    """Add the options of the cluster, `--prefix` and `--timeout`.

    The command gets an open `cluster`. Its class is Cluster, unless a parent command has set `ctx.obj` to
    another class.
    """

    @functools.wraps(command)
    def run(*, client_config: ClientConfig, prefix: str, timeout_ms: int, **others: Any) -> None:
        cluster_class: type[Cluster] = click.get_current_context().find_object(type) or Cluster
        with connected(cluster_class, client_config, prefix, timeout_ms) as cluster:
            command(cluster=cluster, **others)

    return with_options(
        run, cluster_options("The cluster with the coordinator's topics."), prefix_option, timeout_option
    )


def group_options(command: Command) -> Command:
    """Add group ids, as arguments or `--group`, and `--all-groups`.

    The user must give ids or `--all-groups`.
    """

    @functools.wraps(command)
    def run(*, names: tuple[str, ...], named: tuple[str, ...], all_groups: bool, **others: Any) -> None:
        if bool(names or named) == all_groups:
            raise click.UsageError("takes groups (GROUP or --group), or --all-groups")
        command(named=(*names, *named), all_groups=all_groups, **others)

    options = (
        click.argument("names", nargs=-1, metavar="[GROUP]..."),
        click.option(
            "--group",
            "named",
            multiple=True,
            metavar="GROUP",
            help="The same as an argument GROUP; repeatable.",
        ),
        click.option("--all-groups", is_flag=True, help="All consumer groups, empty ones too."),
    )
    return with_options(run, *options)


output_option = click.option(
    "-o",
    "--output",
    type=click.Choice(["table", "json"]),
    default="table",
    show_default=True,
    help="The format of the output.",
)


def show_errors(errors: Sequence[str]) -> None:
    """Print the errors of single groups to stderr."""
    for error in errors:
        show_stderr(f"Error: {error}")


def show_table(table: VisibleText) -> None:
    """Print a table after an empty line, as Kafka's tool does."""
    show(visible_text(["", table]))
