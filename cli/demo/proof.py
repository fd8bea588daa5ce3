"""The end of the demo: reads everything back from the topics and checks every claim."""

from collections.abc import Collection
from contextlib import closing
from pathlib import Path

from msgspec import Struct

from cli.demo import checks
from cli.demo.checks import AnyEntry, Check
from cli.demo.load import consumed
from cli.demo.strike import Struck
from cli.demo.watch import read_all, read_responses
from connections import kafka_clients
from connections.client_config import ClientConfig
from records.history import CoordinatorStarted
from records.layout import TopicLayout


class Deed(Struct, frozen=True):
    """An action of the demo itself, for the timeline. `at_ms` is in milliseconds since the epoch."""

    at_ms: int
    what: str


class DemoResult(Struct, frozen=True):
    """The result. `history` has the group's and the coordinators' entries of the events topic."""

    checks: list[Check]
    history: list[AnyEntry]
    deeds: list[Deed]
    counts: dict[str, int]

    @property
    def ok(self) -> bool:
        return all(check.ok for check in self.checks)


class Observed(Struct, frozen=True):
    """Facts that the script observed and that are not on the topics.

    `struck` is None if no kill hit between a batch's output and its commit.
    """

    group_id: str
    partitions: int
    acknowledged: Collection[str]
    """Values of the records that the broker has acknowledged."""
    consumed: list[Path]
    """The consumers' files."""
    killed: str
    """The client id of the killed consumer."""
    state_at_first_kill: str
    struck: Struck | None
    last_commit: int
    """The last batch in the checkpoint's commit log."""
    deeds: list[Deed]


def examine(client_config: ClientConfig, layout: TopicLayout, observed: Observed) -> DemoResult:
    """Read the topics and return the outcome of all checks."""
    history = checks.read_history(read_all(client_config, layout.events_topic))
    answers = checks.read_answers(*read_responses(client_config, layout.responses_topic))
    dead_letters = read_all(client_config, layout.dead_letters_topic)
    counts = consumed(observed.consumed)
    events = history.of(observed.group_id)
    started = [e for e in history.entries if isinstance(e, CoordinatorStarted)]
    found = [
        checks.all_consumed(set(observed.acknowledged), counts),
        checks.only_expired(events, observed.killed),
        checks.killed_while_rebalancing(observed.state_at_first_kill),
        checks.killed_before_commit(observed.struck),
        checks.ran_again(observed.struck, answers, observed.last_commit),
        checks.one_owner_each(events, observed.partitions),
        checks.broker_knows_no_group(_groups_of(client_config)),
        checks.no_gaps(history),
        checks.history_told_once(history),
        checks.answered_one_way(answers),
        Check("no record was a dead letter", not dead_letters, f"{len(dead_letters)} dead letters"),
    ]
    return DemoResult(
        checks=found,
        history=[*started, *events],
        deeds=observed.deeds,
        counts={
            "records_produced": len(observed.acknowledged),
            "records_consumed": len(counts),
            "records_consumed_again": counts.total() - len(counts),
            "requests_answered": len(answers.by_request),
            "answers_repeated": answers.duplicates,
            "history_entries": len(events),
            "history_entries_repeated": history.duplicates,
            "coordinator_starts": len(started),
        },
    )


def _groups_of(client_config: ClientConfig) -> list[str]:
    """Return the groups of the broker's own coordinator."""
    with closing(kafka_clients.admin(client_config)) as admin:
        return [group["group_id"] for group in admin.list_groups()]
