"""The requests of streams groups, from scenario commands.

A member's StreamsGroupHeartbeat is that of `consumer_requests` with `stream` before it:

    stream A e0 process=p1 host=h1:1 rack=r1 tags=zone:a,cluster:b timeout=60s
                                        joins, with these options or as it joined before
    stream A e2                         a keep-alive; with `full` it sends what it joined with
    stream A e2 A[0,1] S[1:2]           has active tasks 0_0 and 0_1, and standby 1_2; `own[]`: none
    stream A e2 offsets[0,1:50] ends[0] offsets of tasks; `epE=3` its endpoint epoch, `shutdown=yes`
    stream A(ia) -2                     leaves for a while

`topology "0: foo +s; 1: <r1:7 >r2 a b {a,r1}"` sets the topology of all later joins, `epoch=1` its epoch. A
subtopology has sources, changelogs (`+s`), repartition sources with or without a number (`<r1:7`), sinks
(`>r2`), copartition groups, and patterns (`~foo.*`). `topology=` in a join replaces it, `none` leaves it out.

`facts=none`: the gateway could not reach the brokers. By default a join has the required topics, and other
heartbeats those of the member's last `needs_topics`. `lists=A`: only these lists are given.
`not-created="s (too many)"`: the gateway reports why it did not create internal topics.
"""

from collections.abc import Callable

from msgspec import UNSET

from kafka_why.contract.kafka.requests import AnyRequest
from kafka_why.contract.kafka.responses import AnyResponse
from kafka_why.contract.kafka.streams_responses import (
    CopartitionGroup,
    KeyValue,
    StreamsEndpoint,
    StreamsGroupDescribe,
    StreamsGroupHeartbeat,
    StreamsGroupHeartbeatResponse,
    StreamsTopicInfo,
    StreamsTopology,
    Subtopology,
    TaskIds,
    TaskOffset,
)
from state.kafka.streams_topics import required_topics
from tests.harness import consumer_requests, options, share_requests
from tests.harness.cluster import Cluster
from tests.harness.common import Common
from tests.harness.partition_text import numbers_of

PREFIX = "stream "
JOINED_WITH = ("process", "host", "rack", "tags", "timeout", "topology", "client", "epoch-of-topology")
DEFAULT_TOPOLOGY = "0: foo"


def expand(command: str) -> str:
    """Return a member's heartbeat as a command with a verb, any other command unchanged."""
    if command.startswith(PREFIX):
        return f"stream-{consumer_requests.expand(command.removeprefix(PREFIX))}"
    return share_requests.expand(command)


def topology_of(text: str, epoch: int = 0) -> StreamsTopology:
    """Return the topology of a text such as `0: foo +s; 1: <r1:7`."""
    return StreamsTopology(epoch, [_subtopology(part.strip()) for part in text.split(";") if part.strip()])


def _subtopology(text: str) -> Subtopology:
    id_, _, rest = text.partition(":")
    marked: dict[str, list[str]] = {mark: [] for mark in "<>+~{"}
    sources: list[str] = []
    for word in rest.split():
        marked.get(word[0], sources).append(word.lstrip("<>+~{"))
    repartition = [_topic(word) for word in marked["<"]]
    read = [topic.name for topic in repartition]
    return Subtopology(
        subtopology_id=id_,
        source_topics=sources,
        source_topic_regex=marked["~"],
        state_changelog_topics=[_topic(word) for word in marked["+"]],
        repartition_sink_topics=marked[">"],
        repartition_source_topics=repartition,
        copartition_groups=[_copartition(names[:-1], sources, read) for names in marked["{"]],
    )


def _topic(text: str) -> StreamsTopicInfo:
    name, _, partitions = text.partition(":")
    return StreamsTopicInfo(name=name, partitions=int(partitions or 0))


def _copartition(text: str, sources: list[str], repartition: list[str]) -> CopartitionGroup:
    """Parse `a,r1` as sources of a copartition group. A number is the index of a source."""
    names = text.split(",") if text else []
    own = [int(name) if name.isdigit() else sources.index(name) for name in names if name not in repartition]
    return CopartitionGroup(own, [], [repartition.index(name) for name in names if name in repartition])


def _lists(given: dict[str, str], *, is_full: bool) -> dict[str, list[TaskIds] | None]:
    has_some = is_full or not given.keys().isdisjoint(("own", "A", "S", "W"))
    wanted = given.get("lists", "ASW" if has_some and given.get("own") != "none" else "")
    return {role: _tasks(given.get(role, "")) if role in wanted else None for role in "ASW"}


def _tasks(text: str) -> list[TaskIds]:
    """Parse `0,1 1:2`: the tasks 0_0, 0_1 and 1_2."""
    parts = (part.rpartition(":") for part in text.split())
    return [TaskIds(id_ if colon else "0", numbers_of(numbers)) for id_, colon, numbers in parts]


def _endpoint(text: str) -> StreamsEndpoint | None:
    host, _, port = text.partition(":")
    return None if text == "none" else StreamsEndpoint(host, int(port or 1))


def _tags(text: str) -> list[KeyValue]:
    return [KeyValue(*part.split(":")) for part in text.split(",") if part]


def _offsets(text: str | None) -> list[TaskOffset] | None:
    """Parse `0:50,1:7`: the offsets of the tasks 0_0 and 0_1."""
    if text is None:
        return None
    pairs = [part.partition(":") for part in text.split(",") if part]
    return [TaskOffset("0", int(number), int(offset)) for number, _, offset in pairs]


class Application:
    """The topology that the members of a scenario send, and the topics that their last answers asked for."""

    def __init__(self) -> None:
        self._topology = (DEFAULT_TOPOLOGY, 0)
        self._needs: dict[str, list[str]] = {}  # by client

    def set_topology(self, command: str) -> list[str]:
        """Run a command that sets the topology."""
        (_, text), given = options.split(command)
        self._topology = (text, int(given.get("epoch", 0)))
        return []

    def heartbeat(
        self, common: Common, given: dict[str, str], joined_with: dict[str, str], cluster: Cluster
    ) -> AnyRequest:
        """Return the heartbeat of a member. `joined_with` are the member's options so far."""
        epoch = int(given["epoch"])
        is_full = epoch == 0 or "full" in given
        sent = {**joined_with, **given} if is_full else given
        topology = self._topology_of(sent) if epoch == 0 or "topology" in given else None
        needs = self._needs.get(common["correlation_id"], [])
        names = needs if topology is None else required_topics(topology)
        lists = _lists(given, is_full=epoch == 0)
        common["client_id"] = sent.get("client", common["client_id"])
        return StreamsGroupHeartbeat(
            **common,
            member_id=given["id"],
            member_epoch=epoch,
            endpoint_information_epoch=int(given.get("epE", -1)),
            instance_id=given.get("instance"),
            rack_id=sent.get("rack"),
            rebalance_timeout_ms=options.milliseconds(sent.get("timeout", "60s" if is_full else "-1")),
            topology=topology,
            active_tasks=lists["A"],
            standby_tasks=lists["S"],
            warmup_tasks=lists["W"],
            process_id=sent.get("process", given["id"] if is_full else None),
            user_endpoint=_endpoint(sent.get("host", "none")),
            client_tags=_tags(sent["tags"]) if "tags" in sent else [] if is_full else None,
            task_offsets=_offsets(given.get("offsets")),
            task_end_offsets=_offsets(given.get("ends")),
            shutdown_application=given.get("shutdown") == "yes",
            topics=cluster.topic_metadata(names) if names and given.get("facts") != "none" else None,
            not_created=given.get("not-created", UNSET),
        )

    def _topology_of(self, sent: dict[str, str]) -> StreamsTopology | None:
        text, epoch = sent.get("topology", self._topology[0]), self._topology[1]
        return None if text == "none" else topology_of(text, int(sent.get("epoch-of-topology", epoch)))

    def handle_answer(self, client: str, response: AnyResponse) -> None:
        """Note the topics that an answer asks for."""
        if isinstance(response, StreamsGroupHeartbeatResponse) and not response.error_code:
            self._needs[client] = response.needs_topics or []


REQUESTS: dict[str, Callable[[Common, dict[str, str]], AnyRequest]] = share_requests.REQUESTS | {
    "describe-streams": lambda common, _: StreamsGroupDescribe(**common),
}
