"""The most expensive records of the greatest size, for the requests of groups with epochs. See
`tests.harness.worst_requests`.
"""

import json
from uuid import UUID

from msgspec import to_builtins

from kafka_why.contract.codec import request_id
from kafka_why.numbers import INT32_MAX
from kafka_why.partitioner import partition_of
from state.config import GROUP_MAX_PARTITIONS
from state.kafka.streams.requests import ENTRIES_MAX, SUBTOPOLOGIES_MAX, SUBTOPOLOGY_ID_MAX
from tests.harness.streams_requests import topology_of
from tests.harness.worst_requests import LONGEST_NAME, TOPIC, Worst, WorstRequests, request
from tests.spark.log import LAYOUT

TOPIC_ID = str(UUID(int=7))
_FIRST = request_id(LAYOUT.requests_topic, partition_of("g", LAYOUT.request_partitions), 0)
"""The id of the first record, which is that of the task for which the record asks."""
_LISTS: dict[str, object] = {"active_tasks": [], "standby_tasks": [], "warmup_tasks": []}
_TASKS = 20_000


def all_worst(max_bytes: int) -> dict[str, Worst]:
    """Return the cases of every type of request by name. The name begins with the type."""
    records = WorstRequests(max_bytes)
    return {
        **records.all(),
        **_of_consumer_groups(records),
        **_others(records),
        **_of_share_groups(records),
        **_of_streams_groups(records),
    }


def consumer(member_id: str = "m", epoch: int = 0, **fields: object) -> bytes:
    """Return a full heartbeat of a member, which joins by default."""
    usual: dict[str, object] = {
        "api_version": 1,
        "member_id": member_id,
        "member_epoch": epoch,
        "rebalance_timeout_ms": 60_000,
        "topic_partitions": [],
    }
    return request("ConsumerGroupHeartbeat", "g", **usual | fields)


def consumer_of_topic(member_id: str = "m", partitions: int = GROUP_MAX_PARTITIONS) -> bytes:
    """Return the heartbeat by which a member joins that subscribes to one topic."""
    return consumer(
        member_id, subscribed_topic_names=[TOPIC], topics={TOPIC: {"id": TOPIC_ID, "partitions": partitions}}
    )


def _image(n: int) -> str:
    return f'"{n:x}":{{"id":"{UUID(int=n + 8)}","partitions":1}}'


def _of_consumer_groups(records: WorstRequests) -> dict[str, Worst]:
    many = records.array(consumer(subscribed_topic_names="@"), lambda n: f'"{n:x}"')
    pattern = {"topics": "@", "at_ms": 1}
    matches = records.array(consumer(subscribed_topic_regex=".*", regex=pattern), _image, "{", "}")
    owned = [{"topic_id": TOPIC_ID, "partitions": "@"}]
    known = consumer_of_topic()
    return {
        f"ConsumerGroupHeartbeat, {what}": worst
        for what, worst in {
            "many names": Worst(many),
            "one name many times": Worst(
                records.array(consumer(subscribed_topic_names="@"), lambda n: f'"{TOPIC}"')
            ),
            "other names than before": Worst(
                records.array(consumer("n", subscribed_topic_names="@"), lambda n: f'"_{n:x}"'), [many]
            ),
            "a pattern that matches many": Worst(matches),
            "a pattern as long as may be": Worst(consumer(subscribed_topic_regex="(" * LONGEST_NAME)),
            "most partitions": Worst(known),
            "most partitions, of two members": Worst(consumer_of_topic("n"), [known]),
            "2^31 partitions": Worst(consumer_of_topic(partitions=INT32_MAX)),
            "owned partitions": Worst(
                records.array(consumer(epoch=2, subscribed_topic_names=[TOPIC], topic_partitions=owned), str),
                [known],
            ),
            "owned partitions of one topic many times": Worst(
                records.array(
                    consumer(epoch=2, subscribed_topic_names=[TOPIC], topic_partitions="@"),
                    lambda n: f'{{"topic_id":"{TOPIC_ID}","partitions":[{n}]}}',
                ),
                [known, consumer_of_topic("n")],
            ),
            "leaving with most partitions": Worst(consumer(epoch=-1), [known]),
        }.items()
    }


def _others(records: WorstRequests) -> dict[str, Worst]:
    known = consumer_of_topic()
    with_pattern = consumer(subscribed_topic_regex=".*", regex={"topics": {}, "at_ms": 1})
    resolved = json.dumps({"type": "RegexResolved", "group_id": "g", "patterns": "@"}).encode()
    of_pattern = json.dumps(
        {"type": "RegexResolved", "group_id": "g", "patterns": {".*": {"topics": "@", "at_ms": 20_000}}}
    ).encode()
    return {
        "ConsumerGroupDescribe": Worst(records.padded("ConsumerGroupDescribe", api_version=1), [known]),
        "DescribeGroupConfigs": Worst(records.padded("DescribeGroupConfigs", api_version=4), [known]),
        "AlterGroupConfigs, many names": Worst(
            records.array(
                request("AlterGroupConfigs", api_version=1, configs="@"), lambda n: f'"{n:x}":""', "{", "}"
            ),
            [known],
        ),
        "RegexResolved, many patterns": Worst(
            records.array(resolved, lambda n: f'"{n:x}":{{"at_ms":20000}}', "{", "}"), [with_pattern]
        ),
        "RegexResolved, a pattern that matches many": Worst(
            records.array(of_pattern, _image, "{", "}"), [with_pattern]
        ),
    }


def share_member(member_id: str = "m", epoch: int = 0, **fields: object) -> bytes:
    """Return a heartbeat of a member, which joins by default."""
    usual: dict[str, object] = {"api_version": 1, "member_id": member_id, "member_epoch": epoch}
    return request("ShareGroupHeartbeat", "g", **usual | fields)


def share_of_topic(member_id: str = "m") -> bytes:
    """Return the heartbeat by which a member joins that subscribes to one topic of the most partitions."""
    topics = {TOPIC: {"id": TOPIC_ID, "partitions": GROUP_MAX_PARTITIONS}}
    return share_member(member_id, subscribed_topic_names=[TOPIC], topics=topics)


def _result() -> bytes:
    return request("ShareStateResult", task=_FIRST, partitions="@")


def _outcome(n: int) -> str:
    return f'{{"topic_id":"{TOPIC_ID}","partition":{n}}}'


def _altering(partitions: object = "@") -> bytes:
    topics = [{"topic_name": TOPIC, "partitions": partitions}]
    images = {TOPIC: {"id": TOPIC_ID, "partitions": GROUP_MAX_PARTITIONS}}
    return request("AlterShareGroupOffsets", api_version=0, topics=topics, images=images)


def _altered(n: int) -> str:
    return f'{{"partition":{n},"start_offset":7}}'


def _of_share_groups(records: WorstRequests) -> dict[str, Worst]:
    many = records.array(share_member(subscribed_topic_names="@"), lambda n: f'"{n:x}"')
    others = records.array(share_member("n", subscribed_topic_names="@"), lambda n: f'"_{n:x}"')
    known = share_of_topic()
    ready = records.array(_result(), _outcome)
    again = records.array(_result(), lambda n: _outcome(0))
    resetting = request("DeleteShareGroupOffsets", api_version=0, topics="@")
    most = min(GROUP_MAX_PARTITIONS, records.max_bytes // 40)
    altering = _altering([{"partition": n, "start_offset": 7} for n in range(most)])
    return {
        "ShareGroupHeartbeat, many names": Worst(many),
        "ShareGroupHeartbeat, other names than before": Worst(others, [many]),
        "ShareGroupHeartbeat, most partitions": Worst(known),
        "ShareGroupHeartbeat, that assigns most partitions": Worst(share_of_topic("n"), [known, ready]),
        "ShareGroupHeartbeat, leaving with most partitions": Worst(share_member(epoch=-1), [known, ready]),
        "ShareGroupDescribe": Worst(records.padded("ShareGroupDescribe", api_version=1), [known, ready]),
        "DescribeShareGroupOffsets": Worst(
            records.padded("DescribeShareGroupOffsets", api_version=1), [known, ready]
        ),
        "AlterShareGroupOffsets, more than may be": Worst(records.array(_altering(), _altered)),
        "AlterShareGroupOffsets, most partitions": Worst(altering),
        "DeleteShareGroupOffsets": Worst(
            records.array(resetting, lambda n: f'"{n:x}"'),
            [known, ready, share_member(epoch=-1)],
        ),
        "ShareStateResult, that answers an AlterShareGroupOffsets": Worst(ready, [altering]),
        "ShareStateResult, of most partitions": Worst(ready, [known]),
        "ShareStateResult, one partition many times": Worst(again, [known]),
    }


def streams_member(epoch: int = 0, **fields: object) -> bytes:
    """Return a heartbeat of a member, which joins by default."""
    usual: dict[str, object] = {"api_version": 1, "member_id": "m", "member_epoch": epoch, "process_id": "p"}
    joined = {"rebalance_timeout_ms": 60_000, **_LISTS} if epoch == 0 else {}
    return request("StreamsGroupHeartbeat", "g", **usual | joined | fields)


def streams_of_topology(text: str, partitions: int = 1) -> bytes:
    """Return the heartbeat by which a member joins with this topology. One topic exists."""
    images = {TOPIC: {"id": TOPIC_ID, "partitions": partitions}}
    return streams_member(topology=to_builtins(topology_of(text)), topics=images)


def _chained(n: int) -> str:
    return f"{n:x}: <r{n + 1:x} >r{n:x}"


def _of_streams_groups(records: WorstRequests) -> dict[str, Worst]:
    sources = {"epoch": 0, "subtopologies": [{"subtopology_id": "0", "source_topics": "@"}]}
    too_many = records.array(streams_member(topology=sources), lambda n: f'"{n:x}"')
    missing = streams_of_topology("0: " + " ".join(f"{n:x}" for n in range(ENTRIES_MAX)))
    active = [{"subtopology_id": "0", "partitions": "@"}]
    reported = records.array(streams_member(1, **_LISTS | {"active_tasks": active}), str)
    offsets = records.array(
        streams_member(1, task_offsets="@"), lambda n: f'{{"subtopology_id":"0","partition":{n},"offset":1}}'
    )
    # Each subtopology reads the repartition topic that the next one writes.
    chain = records.array(
        streams_member(topology={"epoch": 0, "subtopologies": "@"}),
        lambda n: json.dumps(to_builtins(topology_of(_chained(n)).subtopologies[0]), separators=(",", ":")),
    )
    most = SUBTOPOLOGIES_MAX - 1
    long_chain = streams_of_topology("; ".join([*map(_chained, range(most)), f"z: {TOPIC} >r{most:x}"]))
    entries = (f"{TOPIC} >r{n:x} <r{n:x} {{r{n:x}}}" for n in range(ENTRIES_MAX // 5))
    lists = streams_of_topology("0: " + " ".join(entries))
    ids = (f"{n:x}".rjust(SUBTOPOLOGY_ID_MAX, "0") + f": t{n:x} +c{n:x}" for n in range(SUBTOPOLOGIES_MAX))
    longest = streams_of_topology("; ".join(ids))
    of_topic = streams_of_topology(f"0: {TOPIC}", _TASKS)
    return {
        "StreamsGroupHeartbeat, more sources than may be": Worst(too_many),
        "StreamsGroupHeartbeat, sources that are missing": Worst(missing),
        "StreamsGroupHeartbeat, long lists of all kinds": Worst(lists),
        "StreamsGroupHeartbeat, long ids of subtopologies": Worst(longest),
        "StreamsGroupHeartbeat, more subtopologies than may be": Worst(chain),
        "StreamsGroupHeartbeat, repartition topics that depend on each other": Worst(long_chain),
        "StreamsGroupHeartbeat, tasks that it reports": Worst(reported, [of_topic]),
        "StreamsGroupHeartbeat, offsets that it reports": Worst(offsets, [of_topic]),
        "StreamsGroupDescribe": Worst(records.padded("StreamsGroupDescribe", api_version=1), [missing]),
    }
