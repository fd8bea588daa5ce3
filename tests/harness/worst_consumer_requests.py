"""The most expensive records of the greatest size, for the requests of the consumer protocol. See
`tests.harness.worst_requests`.
"""

import json
from uuid import UUID

from kafka_why.numbers import INT32_MAX
from state.config import GROUP_MAX_PARTITIONS
from tests.harness.worst_requests import LONGEST_NAME, TOPIC, Worst, WorstRequests, request

TOPIC_ID = str(UUID(int=7))


def all_worst(max_bytes: int) -> dict[str, Worst]:
    """Return the cases of every type of request by name. The name begins with the type."""
    records = WorstRequests(max_bytes)
    return {**records.all(), **_heartbeats(records), **_others(records)}


def member(member_id: str = "m", epoch: int = 0, **fields: object) -> bytes:
    """Return a full heartbeat of a member, which joins by default."""
    given: dict[str, object] = {
        "api_version": 1,
        "member_id": member_id,
        "member_epoch": epoch,
        "rebalance_timeout_ms": 60_000,
        "topic_partitions": [],
    }
    return request("ConsumerGroupHeartbeat", "g", **given | fields)


def of_topic(member_id: str = "m", partitions: int = GROUP_MAX_PARTITIONS) -> bytes:
    """Return the heartbeat by which a member joins that subscribes to one topic."""
    return member(
        member_id, subscribed_topic_names=[TOPIC], topics={TOPIC: {"id": TOPIC_ID, "partitions": partitions}}
    )


def _image(n: int) -> str:
    return f'"{n:x}":{{"id":"{UUID(int=n + 8)}","partitions":1}}'


def _heartbeats(records: WorstRequests) -> dict[str, Worst]:
    many = records.array(member(subscribed_topic_names="@"), lambda n: f'"{n:x}"')
    pattern = {"topics": "@", "at_ms": 1}
    matches = records.array(member(subscribed_topic_regex=".*", regex=pattern), _image, "{", "}")
    owned = [{"topic_id": TOPIC_ID, "partitions": "@"}]
    known = of_topic()
    return {
        f"ConsumerGroupHeartbeat, {what}": worst
        for what, worst in {
            "many names": Worst(many),
            "one name many times": Worst(
                records.array(member(subscribed_topic_names="@"), lambda n: f'"{TOPIC}"')
            ),
            "other names than before": Worst(
                records.array(member("n", subscribed_topic_names="@"), lambda n: f'"_{n:x}"'), [many]
            ),
            "a pattern that matches many": Worst(matches),
            "a pattern as long as may be": Worst(member(subscribed_topic_regex="(" * LONGEST_NAME)),
            "most partitions": Worst(known),
            "most partitions, of two members": Worst(of_topic("n"), [known]),
            "2^31 partitions": Worst(of_topic(partitions=INT32_MAX)),
            "owned partitions": Worst(
                records.array(member(epoch=2, subscribed_topic_names=[TOPIC], topic_partitions=owned), str),
                [known],
            ),
            "owned partitions of one topic many times": Worst(
                records.array(
                    member(epoch=2, subscribed_topic_names=[TOPIC], topic_partitions="@"),
                    lambda n: f'{{"topic_id":"{TOPIC_ID}","partitions":[{n}]}}',
                ),
                [known, of_topic("n")],
            ),
            "leaving with most partitions": Worst(member(epoch=-1), [known]),
        }.items()
    }


def _others(records: WorstRequests) -> dict[str, Worst]:
    known = of_topic()
    with_pattern = member(subscribed_topic_regex=".*", regex={"topics": {}, "at_ms": 1})
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
