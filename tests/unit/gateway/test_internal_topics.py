"""The coordinator's own topics: marked as internal, and protected from changes by clients."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any
from uuid import UUID

import pytest
from kafka.protocol.api_key import ApiKey

from gateway.wire import codec
from kafka_why.contract.layout import TopicLayout
from tests.harness.gateway import NODE_ID, GatewayFixture, played, topic_id

OWN = TopicLayout.named().requests_topic
internal = partial(played, expose_internal_topics=False)
OTHER = "orders"
RECORDS = bytes(range(256))
INVALID_TOPIC, NOT_AUTHORIZED, NOT_ATTEMPTED = 17, 29, 55
TOPIC, BROKER = 2, 4  # ConfigResource.Type


@dataclass(frozen=True)
class Case:
    """An API that changes topics. `about` makes a request about these topics, `answer` a broker's response
    with error code 0. `errors` returns the error codes of a response by topic, `asked` a request's topics.
    """

    api_key: int
    about: Callable[[list[str]], codec.Fields]
    answer: Callable[[list[str]], codec.Fields]
    errors: Callable[[Any], dict[Any, int]]
    asked: Callable[[Any], list[Any]]


def named(topics: list[str], **fields: Any) -> list[codec.Fields]:
    return [{"name": topic, **fields} for topic in topics]


def of_topics(topics: Any) -> dict[Any, int]:
    return {topic.name: topic.error_code for topic in topics}


def of_partitions(topics: Any, name: str = "partitions") -> dict[Any, int]:
    return {topic.name: partition.error_code for topic in topics for partition in getattr(topic, name)}


def produced(topics: list[str]) -> codec.Fields:
    data = [{"index": 0, "records": RECORDS}]
    return {"acks": -1, "timeout_ms": 1_000, "topic_data": named(topics, partition_data=data)}


def configs(topics: list[str], entry: codec.Fields) -> codec.Fields:
    resources = [{"resource_type": TOPIC, "resource_name": topic, "configs": [entry]} for topic in topics]
    broker = {
        "resource_type": BROKER,
        "resource_name": OWN,
        "configs": [entry],
    }  # no topic, whatever its name
    return {"resources": [*resources, broker]}


def configured(topics: list[str]) -> codec.Fields:
    return {
        "responses": [{"resource_type": TOPIC, "resource_name": topic, "error_code": 0} for topic in topics]
    }


def of_configs(response: Any) -> dict[Any, int]:
    return {resource.resource_name: resource.error_code for resource in response.responses}


def topics_configured(request: Any) -> list[Any]:
    assert [r.resource_name for r in request.resources if r.resource_type == BROKER] == [OWN]
    return [r.resource_name for r in request.resources if r.resource_type == TOPIC]


def names(topics: Any) -> list[Any]:
    return [topic.name for topic in topics]


CASES = {
    "Produce": Case(
        ApiKey.Produce,
        produced,
        lambda topics: {"responses": named(topics, partition_responses=[{"index": 0, "base_offset": 7}])},
        lambda response: of_partitions(response.responses, "partition_responses"),
        lambda request: names(request.topic_data),
    ),
    "CreateTopics": Case(
        ApiKey.CreateTopics,
        lambda topics: {"topics": named(topics, num_partitions=1, replication_factor=1), "timeout_ms": 1},
        lambda topics: {"topics": named(topics)},
        lambda response: of_topics(response.topics),
        lambda request: names(request.topics),
    ),
    "DeleteTopics": Case(
        ApiKey.DeleteTopics,
        lambda topics: {"topics": named(topics), "topic_names": topics},
        lambda topics: {"responses": named(topics)},
        lambda response: of_topics(response.responses),
        lambda request: names(request.topics) or request.topic_names,
    ),
    "DeleteRecords": Case(
        ApiKey.DeleteRecords,
        lambda topics: {"topics": named(topics, partitions=[{"partition_index": 0, "offset": -1}])},
        lambda topics: {"topics": named(topics, partitions=[{"partition_index": 0, "low_watermark": 3}])},
        lambda response: of_partitions(response.topics),
        lambda request: names(request.topics),
    ),
    "AlterConfigs": Case(
        ApiKey.AlterConfigs,
        lambda topics: configs(topics, {"name": "retention.ms", "value": "1"}),
        configured,
        of_configs,
        topics_configured,
    ),
    "IncrementalAlterConfigs": Case(
        ApiKey.IncrementalAlterConfigs,
        lambda topics: configs(topics, {"name": "retention.ms", "config_operation": 0, "value": "1"}),
        configured,
        of_configs,
        topics_configured,
    ),
    "CreatePartitions": Case(
        ApiKey.CreatePartitions,
        lambda topics: {"topics": named(topics, count=9)},
        lambda topics: {"results": named(topics)},
        lambda response: of_topics(response.results),
        lambda request: names(request.topics),
    ),
    "AlterPartitionReassignments": Case(
        ApiKey.AlterPartitionReassignments,
        lambda topics: {"topics": named(topics, partitions=[{"partition_index": 0, "replicas": [1]}])},
        lambda topics: {"responses": named(topics, partitions=[{"partition_index": 0}])},
        lambda response: of_partitions(response.responses),
        lambda request: names(request.topics),
    ),
}
VERSIONS = [
    pytest.param(case, version, id=f"{name}-{version}")
    for name, case in CASES.items()
    for version in codec.versions(case.api_key)
    if (case.api_key, version) != (ApiKey.Produce, 13)  # by id
]


@pytest.mark.parametrize("others", [[OTHER], []], ids=["with others", "alone"])
@pytest.mark.parametrize(("case", "version"), VERSIONS)
@internal
async def test_internal_topics_are_refused_and_others_of_the_request_served(
    world: GatewayFixture, case: Case, version: int, others: list[str]
) -> None:
    """A request that is left without topics does not reach the broker, unless it has entries about others."""
    own = list(TopicLayout.named().topics)
    client = await world.client()
    world.broker.answers[case.api_key] = case.answer(others)
    answer = await client.ask(case.api_key, version, **case.about([*own, *others]))
    assert case.errors(answer) == dict.fromkeys(own, INVALID_TOPIC) | dict.fromkeys(others, 0)
    assert [case.asked(request) for request in world.broker.requests()] in ([others], [])


@internal
async def test_produce_by_topic_id_to_an_internal_topic_is_refused(world: GatewayFixture) -> None:
    world.broker.topics[OWN] = 1
    client = await world.client()
    data = [{"index": 0, "records": RECORDS}]
    ids = [topic_id(OWN), topic_id(OTHER), UUID(int=77)]
    topics = [{"topic_id": key, "partition_data": data} for key in ids]
    world.broker.answers[ApiKey.Produce] = {
        "responses": [{"topic_id": key, "partition_responses": [{"index": 0}]} for key in ids[1:]]
    }
    for _ in range(2):
        answer = await client.ask(ApiKey.Produce, 13, acks=1, topic_data=topics)
        errors = {topic.topic_id: topic.partition_responses[0].error_code for topic in answer.responses}
        assert errors == {ids[0]: INVALID_TOPIC, ids[1]: 0, ids[2]: 0}
    assert [[t.topic_id for t in request.topic_data] for request in world.broker.requests()] == [ids[1:]] * 2
    refused = await client.ask(ApiKey.Produce, 13, acks=1, topic_data=topics[:1])
    assert refused.responses[0].topic_id == ids[0]
    assert len(world.broker.messages) == 2


@internal
async def test_internal_topic_cannot_be_deleted_by_its_id(world: GatewayFixture) -> None:
    world.broker.topics[OWN] = 1
    client = await world.client()
    world.broker.answers[ApiKey.DeleteTopics] = {"responses": [{"name": OTHER, "topic_id": topic_id(OTHER)}]}
    topics = [{"name": None, "topic_id": topic_id(name)} for name in (OWN, OTHER)]
    answer = await client.ask(ApiKey.DeleteTopics, 6, topics=topics)
    assert {topic.topic_id: topic.error_code for topic in answer.responses} == {
        topic_id(OWN): INVALID_TOPIC,
        topic_id(OTHER): 0,
    }
    (request,) = world.broker.requests()
    assert [topic.topic_id for topic in request.topics] == [topic_id(OTHER)]


@pytest.mark.parametrize("version", codec.versions(ApiKey.AddPartitionsToTxn))
@internal
async def test_a_transaction_with_an_internal_topic_is_refused_as_a_whole(
    world: GatewayFixture, version: int
) -> None:
    """As Kafka does. Its producer's TransactionManager then aborts, and retries neither partition."""
    client = await world.client()
    topics = named([OWN, OTHER], partitions=[0, 1])
    transaction = {"transactional_id": "t", "producer_id": 1, "producer_epoch": 0, "topics": topics}
    answer = await client.ask(
        ApiKey.AddPartitionsToTxn,
        version,
        transactions=[transaction],
        v3_and_below_transactional_id="t",
        v3_and_below_topics=topics,
    )
    results = answer.results_by_topic_v3_and_below
    if version >= 4:
        ((topic_name, results),) = [
            (t.transactional_id, t.topic_results) for t in answer.results_by_transaction
        ]
        assert topic_name == "t"
    assert {t.name: [p.partition_error_code for p in t.results_by_partition] for t in results} == {
        OWN: [NOT_AUTHORIZED] * 2,
        OTHER: [NOT_ATTEMPTED] * 2,
    }
    assert world.broker.messages == []


@internal
async def test_client_cannot_write_transaction_markers_to_an_internal_topic(world: GatewayFixture) -> None:
    client = await world.client()
    topics = named([OWN, OTHER], partition_indexes=[0])
    marker = {"producer_id": 5, "producer_epoch": 0, "transaction_result": False, "topics": topics}
    answer = await client.ask(ApiKey.WriteTxnMarkers, 1, markers=[marker])
    assert [(m.producer_id, of_partitions(m.topics)) for m in answer.markers] == [
        (5, {OWN: NOT_AUTHORIZED, OTHER: NOT_ATTEMPTED})
    ]
    assert world.broker.messages == []


@pytest.mark.parametrize("exposed", [False, True], ids=["internal", "exposed"])
@played(expose_internal_topics=lambda exposed: exposed)
async def test_metadata_marks_internal_topics(world: GatewayFixture, exposed: bool) -> None:
    is_internal = not exposed
    world.broker.topics[OWN] = 1
    client = await world.client()
    for version in codec.versions(ApiKey.Metadata):
        metadata = await client.ask(ApiKey.Metadata, version, topics=[{"name": OWN}, {"name": OTHER}])
        internal = {topic.name: topic.is_internal for topic in metadata.topics}
        assert internal == {OWN: is_internal and version >= 1, OTHER: False}
        assert {broker.node_id for broker in metadata.brokers} == {NODE_ID}
    world.broker.answers[ApiKey.DescribeTopicPartitions] = {"topics": named([OWN, OTHER])}
    described = await client.ask(ApiKey.DescribeTopicPartitions, 0, topics=named([OWN, OTHER]))
    assert {t.name: t.is_internal for t in described.topics} == {OWN: is_internal, OTHER: False}


@internal(decoded_frame_bytes=1_000)
async def test_size_limit_applies_to_decoded_requests_but_not_to_records(world: GatewayFixture) -> None:
    client = await world.client()
    world.broker.answers[ApiKey.Produce] = {"responses": []}
    await client.ask(ApiKey.Produce, 9, **produced([OTHER] * 100))
    await client.send(ApiKey.DeleteTopics, 6, topics=named([OTHER] * 100))
    assert await client.is_closed()
