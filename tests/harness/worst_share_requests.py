"""The most expensive records of the greatest size, for the requests of share groups. See
`tests.harness.worst_requests`.
"""

from kafka_why.contract.codec import request_id
from kafka_why.partitioner import partition_of
from state.config import GROUP_MAX_PARTITIONS
from tests.harness import worst_consumer_requests
from tests.harness.worst_consumer_requests import TOPIC_ID
from tests.harness.worst_requests import TOPIC, Worst, WorstRequests, request
from tests.spark.log import LAYOUT

_FIRST = request_id(LAYOUT.requests_topic, partition_of("g", LAYOUT.request_partitions), 0)
"""The id of the first record, which is that of the task for which the record asks."""


def all_worst(max_bytes: int) -> dict[str, Worst]:
    """Return the cases of every type of request by name. The name begins with the type."""
    return worst_consumer_requests.all_worst(max_bytes) | _of_share_groups(WorstRequests(max_bytes))


def member(member_id: str = "m", epoch: int = 0, **fields: object) -> bytes:
    """Return a heartbeat of a member, which joins by default."""
    given: dict[str, object] = {"api_version": 1, "member_id": member_id, "member_epoch": epoch}
    return request("ShareGroupHeartbeat", "g", **given | fields)


def of_topic(member_id: str = "m") -> bytes:
    """Return the heartbeat by which a member joins that subscribes to one topic of the most partitions."""
    topics = {TOPIC: {"id": TOPIC_ID, "partitions": GROUP_MAX_PARTITIONS}}
    return member(member_id, subscribed_topic_names=[TOPIC], topics=topics)


def _result() -> bytes:
    return request("ShareStateResult", task=_FIRST, partitions="@")


def _outcome(n: int) -> str:
    return f'{{"topic_id":"{TOPIC_ID}","partition":{n}}}'


def _altering(given: object = "@") -> bytes:
    partitions = [{"topic_name": TOPIC, "partitions": given}]
    images = {TOPIC: {"id": TOPIC_ID, "partitions": GROUP_MAX_PARTITIONS}}
    return request("AlterShareGroupOffsets", api_version=0, topics=partitions, images=images)


def _altered(n: int) -> str:
    return f'{{"partition":{n},"start_offset":7}}'


def _resetting() -> bytes:
    return request("DeleteShareGroupOffsets", api_version=0, topics="@")


def _of_share_groups(records: WorstRequests) -> dict[str, Worst]:
    many = records.array(member(subscribed_topic_names="@"), lambda n: f'"{n:x}"')
    others = records.array(member("n", subscribed_topic_names="@"), lambda n: f'"_{n:x}"')
    known = of_topic()
    ready = records.array(_result(), _outcome)
    again = records.array(_result(), lambda n: _outcome(0))
    most = min(GROUP_MAX_PARTITIONS, records.max_bytes // 40)
    altering = _altering([{"partition": n, "start_offset": 7} for n in range(most)])
    return {
        "ShareGroupHeartbeat, many names": Worst(many),
        "ShareGroupHeartbeat, other names than before": Worst(others, [many]),
        "ShareGroupHeartbeat, most partitions": Worst(known),
        "ShareGroupHeartbeat, that assigns most partitions": Worst(of_topic("n"), [known, ready]),
        "ShareGroupHeartbeat, leaving with most partitions": Worst(member(epoch=-1), [known, ready]),
        "ShareGroupDescribe": Worst(records.padded("ShareGroupDescribe", api_version=1), [known, ready]),
        "DescribeShareGroupOffsets": Worst(
            records.padded("DescribeShareGroupOffsets", api_version=1), [known, ready]
        ),
        "AlterShareGroupOffsets, more than may be": Worst(records.array(_altering(), _altered)),
        "AlterShareGroupOffsets, most partitions": Worst(altering),
        "DeleteShareGroupOffsets": Worst(
            records.array(_resetting(), lambda n: f'"{n:x}"'), [known, ready, member(epoch=-1)]
        ),
        "ShareStateResult, that answers an AlterShareGroupOffsets": Worst(ready, [altering]),
        "ShareStateResult, of most partitions": Worst(ready, [known]),
        "ShareStateResult, one partition many times": Worst(again, [known]),
    }
