"""The most expensive records of the greatest size, for the requests of streams groups. See
`tests.harness.worst_requests`.
"""

import json

from state.kafka.streams.requests import ENTRIES_MAX, SUBTOPOLOGIES_MAX, SUBTOPOLOGY_ID_MAX
from tests.harness import worst_share_requests
from tests.harness.worst_consumer_requests import TOPIC_ID
from tests.harness.worst_requests import TOPIC, Worst, WorstRequests, request

_LISTS: dict[str, object] = {"active_tasks": [], "standby_tasks": [], "warmup_tasks": []}
_TASKS = 20_000


def all_worst(max_bytes: int) -> dict[str, Worst]:
    """Return the cases of every type of request by name. The name begins with the type."""
    return worst_share_requests.all_worst(max_bytes) | _of_streams_groups(WorstRequests(max_bytes))


def member(epoch: int = 0, **fields: object) -> bytes:
    """Return a heartbeat of a member, which joins by default."""
    given: dict[str, object] = {"api_version": 1, "member_id": "m", "member_epoch": epoch, "process_id": "p"}
    joined = {"rebalance_timeout_ms": 60_000, **_LISTS} if epoch == 0 else {}
    return request("StreamsGroupHeartbeat", "g", **given | joined | fields)


def of_topic() -> bytes:
    """Return the heartbeat by which a member joins whose topology reads one topic of many partitions."""
    one = {"subtopology_id": "0", "source_topics": [TOPIC]}
    topics = {TOPIC: {"id": TOPIC_ID, "partitions": _TASKS}}
    return member(topology={"epoch": 0, "subtopologies": [one]}, topics=topics)


def _chained(n: int) -> str:
    """Return a subtopology that reads the repartition topic which the next one writes."""
    one = {
        "subtopology_id": f"{n:x}",
        "repartition_source_topics": [{"name": f"r{n + 1:x}"}],
        "repartition_sink_topics": [f"r{n:x}"],
    }
    return json.dumps(one, separators=(",", ":"))


def _of_streams_groups(records: WorstRequests) -> dict[str, Worst]:
    topology = {"epoch": 0, "subtopologies": "@"}
    sources = {"epoch": 0, "subtopologies": [{"subtopology_id": "0", "source_topics": "@"}]}
    too_many = records.array(member(topology=sources), lambda n: f'"{n:x}"')
    most_sources = {"subtopology_id": "0", "source_topics": [f"{n:x}" for n in range(ENTRIES_MAX)]}
    missing = member(topology={"epoch": 0, "subtopologies": [most_sources]})
    reported = records.array(
        member(
            1, active_tasks=[{"subtopology_id": "0", "partitions": "@"}], standby_tasks=[], warmup_tasks=[]
        ),
        str,
    )
    offsets = records.array(
        member(1, task_offsets="@"), lambda n: f'{{"subtopology_id":"0","partition":{n},"offset":1}}'
    )
    chain = records.array(member(topology=topology), _chained)
    most = [json.loads(_chained(n)) for n in range(SUBTOPOLOGIES_MAX - 1)]
    last = {"subtopology_id": "z", "source_topics": [TOPIC], "repartition_sink_topics": [f"r{len(most):x}"]}
    images = {TOPIC: {"id": TOPIC_ID, "partitions": 1}}
    long_chain = member(topology={"epoch": 0, "subtopologies": [*most, last]}, topics=images)
    many = ENTRIES_MAX // 5
    joined = {
        "subtopology_id": "0",
        "source_topics": [TOPIC] * many,
        "repartition_sink_topics": [f"r{n:x}" for n in range(many)],
        "repartition_source_topics": [{"name": f"r{n:x}"} for n in range(many)],
        "copartition_groups": [{"repartition_source_topics": [n]} for n in range(many)],
    }
    lists = member(topology={"epoch": 0, "subtopologies": [joined]}, topics=images)
    long_ids = [
        {
            "subtopology_id": f"{n:x}".rjust(SUBTOPOLOGY_ID_MAX, "0"),
            "source_topics": [f"t{n:x}"],
            "state_changelog_topics": [{"name": f"c{n:x}"}],
        }
        for n in range(SUBTOPOLOGIES_MAX)
    ]
    longest = member(topology={"epoch": 0, "subtopologies": long_ids})
    return {
        "StreamsGroupHeartbeat, more sources than may be": Worst(too_many),
        "StreamsGroupHeartbeat, sources that are missing": Worst(missing),
        "StreamsGroupHeartbeat, long lists of all kinds": Worst(lists),
        "StreamsGroupHeartbeat, long ids of subtopologies": Worst(longest),
        "StreamsGroupHeartbeat, more subtopologies than may be": Worst(chain),
        "StreamsGroupHeartbeat, repartition topics that depend on each other": Worst(long_chain),
        "StreamsGroupHeartbeat, tasks that it reports": Worst(reported, [of_topic()]),
        "StreamsGroupHeartbeat, offsets that it reports": Worst(offsets, [of_topic()]),
        "StreamsGroupDescribe": Worst(records.padded("StreamsGroupDescribe", api_version=1), [missing]),
    }
