"""The requests that pass to the brokers: a row for each API that the gateway knows.

If the gateway sends them under its own principal, a broker checks that principal, so the gateway has to check
the client's (docs/decisions/0022). The checks are those of Kafka's KafkaApis and ControllerApis. Denied
entries are removed from the request, and get their error in the response. A request without a check in its
row is for super users.
"""

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

from kafka.protocol.api_key import ApiKey

from gateway.apis import addresses, broker_configs, group_configs, internal_topics
from gateway.apis.api import ERRORS, Entries, Passed, Screen, Screened, may_on_cluster
from gateway.apis.context import RequestContext
from gateway.apis.passed_guards import (
    guard_addition,
    guard_cluster,
    guard_description,
    guard_end,
    guard_fetch,
    guard_find,
    guard_metadata,
    guard_produce,
    guard_producer_id,
    guard_transactions,
)
from gateway.authorization.acls import CLUSTER_NAME, Operation, ResourceType
from gateway.log_text import quoted
from gateway.wire import codec, offload
from gateway.wire.codec import Fields, GatewayError, NewerApiKey
from gateway.wire.framing import ProtocolError

_TOPIC, _GROUP, _CLUSTER = ResourceType.TOPIC, ResourceType.GROUP, ResourceType.CLUSTER


async def guard(api: Passed | None, context: RequestContext, message: bytes) -> Screened | None:
    """Check the ACLs of a request that passes to a broker. Return None if it may pass unchanged.

    Raises UpstreamLost, and ProtocolError if a broker could decode the request differently, or if it is
    denied and has no response for that.
    """
    authorizer, key = context.services.authorizer, context.header.api_key
    if authorizer is None or (api is not None and api.is_screened):
        return None
    if not authorizer.is_super_user(context.principal):
        if api is not None and api.guard is not None:
            return await api.guard(context, message)
        if api is None or not (api.is_free or (api.needs is not None and may_on_cluster(context, api.needs))):
            raise ProtocolError(f"{quoted(context.principal)} may not send a request of api {key}")
    if key in codec.REQUESTS:
        await offload.decode_passed(context.header, message)  # as guards do, to refuse ambiguous messages
    return None


def _on_topic(
    operation: Operation, name: str = "name"
) -> Callable[[RequestContext, Any], GatewayError | None]:
    """Return the check of an entry that has a topic's name in the field `name`."""

    def error(context: RequestContext, entry: Any) -> GatewayError | None:
        return None if context.may(operation, _TOPIC, getattr(entry, name)) else ERRORS[_TOPIC]

    return error


def _create_error(context: RequestContext, topic: Any) -> GatewayError | None:
    may = may_on_cluster(context, Operation.CREATE) or context.may(Operation.CREATE, _TOPIC, topic.name)
    return None if may else ERRORS[_TOPIC]


# By ConfigResource.Type. Resources of all other types belong to the cluster.
_CONFIG_TYPES: Mapping[int, ResourceType] = MappingProxyType({2: _TOPIC, 32: _GROUP})


def _on_config(operation: Operation) -> Callable[[RequestContext, Any], GatewayError | None]:
    def error(context: RequestContext, resource: Any) -> GatewayError | None:
        kind = _CONFIG_TYPES.get(resource.resource_type, _CLUSTER)
        name = CLUSTER_NAME if kind is _CLUSTER else resource.resource_name
        return None if context.may(operation, kind, name) else ERRORS[kind]

    return error


def _refused_by_name(entry: Any, error: GatewayError) -> Fields:
    return {"name": entry.name, "error_code": error}


def _refused_resource(resource: Any, error: GatewayError) -> Fields:
    return {
        "resource_type": resource.resource_type,
        "resource_name": resource.resource_name,
        "error_code": error,
    }


def _refused_partitions(
    topic_field: str = "name", partition_field: str = "partition_index", **nothing: int
) -> Callable[[Any, GatewayError], Fields]:
    """Return a function that builds a topic's part of a response, with one error for all partitions."""

    def refused(topic: Any, error: GatewayError) -> Fields:
        failed = {"error_code": error, **nothing}
        indexes = (getattr(partition, partition_field) for partition in topic.partitions)
        return {
            topic_field: getattr(topic, topic_field),
            "partitions": [{partition_field: index, **failed} for index in indexes],
        }

    return refused


def _refused_producers(topic: Any, error: GatewayError) -> Fields:
    partitions = [{"partition_index": index, "error_code": error} for index in topic.partition_indexes]
    return {"name": topic.name, "partitions": partitions}


_CREATED = Entries("topics", "topics", _create_error, _refused_by_name)


async def _guard_creation(context: RequestContext, message: bytes) -> Screened | None:
    async def change(response: Any) -> None:
        for topic in response.topics:
            if not topic.error_code and not context.may(Operation.DESCRIBE_CONFIGS, _TOPIC, topic.name):
                # As in Kafka, the settings of a new topic need DESCRIBE_CONFIGS.
                topic.topic_config_error_code = ERRORS[_TOPIC]
                topic.num_partitions, topic.replication_factor, topic.configs = -1, -1, []

    return await _CREATED.guard(context, message, change)


_FIRST_DELETE_BY_ID = 6
_DELETED_NAMES = Entries(
    "topic_names",
    "responses",
    lambda context, name: None if context.may(Operation.DELETE, _TOPIC, name) else ERRORS[_TOPIC],
    lambda name, error: {"name": name, "error_code": error},
)


async def _guard_deletion(context: RequestContext, message: bytes) -> Screened | None:
    """Check the ACLs of a DeleteTopics. From version 6 on it may have topic ids."""
    if context.version < _FIRST_DELETE_BY_ID:
        return await _DELETED_NAMES.guard(context, message)
    request = await offload.decode_passed(context.header, message)
    ids = [topic.topic_id for topic in request.topics if not topic.name]
    found = await context.services.cluster.topics_by_id(ids)
    names = {topic_id: topic.name for topic_id, topic in found.items()}

    def error(_: RequestContext, entry: Any) -> GatewayError | None:
        name = entry.name or names.get(entry.topic_id)
        if name is None:
            # ACLs are about names, and this id has none.
            return GatewayError.UNKNOWN_TOPIC_ID
        return None if context.may(Operation.DELETE, _TOPIC, name) else ERRORS[_TOPIC]

    def refused(entry: Any, why: GatewayError) -> Fields:
        key = {"name": entry.name} if entry.name else {"name": None, "topic_id": entry.topic_id}
        return {**key, "error_code": why}

    return await Entries("topics", "responses", error, refused).guard(context, message)


def _on_cluster(operation: Operation, refused: Callable[[Any], Fields]) -> Screen:
    """Return the check of a request about the cluster. `refused` returns the response to a denied request."""

    async def guard_request(context: RequestContext, message: bytes) -> Screened | None:
        request = await offload.decode_passed(context.header, message)
        return None if may_on_cluster(context, operation) else Screened(None, refused(request))

    return guard_request


_REFUSED = {"error_code": ERRORS[_CLUSTER], "error_message": "Cluster authorization failed."}


ROWS = (
    Passed(
        key=ApiKey.Produce,
        guard=guard_produce,
        internal=internal_topics.screen_produce,
        rewrite=addresses.rewrite_endpoints,
        is_rewritten=addresses.carries_endpoints(ApiKey.Produce, 10),
        # Brokers list versions that they no longer accept, because librdkafka detects features by them.
        versions=range(codec.versions(ApiKey.Produce).stop),
    ),
    Passed(
        key=ApiKey.Fetch,
        guard=guard_fetch,
        rewrite=addresses.rewrite_endpoints,
        is_rewritten=addresses.carries_endpoints(ApiKey.Fetch, 16),
    ),
    Passed(
        key=ApiKey.ListOffsets,
        guard=Entries(
            "topics", "topics", _on_topic(Operation.DESCRIBE), _refused_partitions(timestamp=-1, offset=-1)
        ).guard,
    ),
    Passed(key=ApiKey.Metadata, guard=guard_metadata, rewrite=addresses.rewrite_metadata),
    Passed(key=ApiKey.FindCoordinator, guard=guard_find, rewrite=addresses.rewrite_coordinators),
    Passed(key=ApiKey.CreateTopics, guard=_guard_creation, internal=internal_topics.screen_creation),
    Passed(key=ApiKey.DeleteTopics, guard=_guard_deletion, internal=internal_topics.screen_deletion),
    Passed(
        key=ApiKey.DeleteRecords,
        guard=Entries(
            "topics", "topics", _on_topic(Operation.DELETE), _refused_partitions(low_watermark=-1)
        ).guard,
        internal=internal_topics.screen_records,
    ),
    Passed(key=ApiKey.InitProducerId, guard=guard_producer_id),
    Passed(
        key=ApiKey.OffsetForLeaderEpoch,
        guard=Entries(
            "topics",
            "topics",
            _on_topic(Operation.DESCRIBE, "topic"),
            _refused_partitions("topic", "partition", leader_epoch=-1, end_offset=-1),
        ).guard,
    ),
    Passed(key=ApiKey.AddPartitionsToTxn, guard=guard_addition, internal=internal_topics.screen_addition),
    Passed(key=ApiKey.EndTxn, guard=guard_end),
    Passed(key=ApiKey.WriteTxnMarkers, needs=Operation.ALTER, internal=internal_topics.screen_markers),
    Passed(key=ApiKey.DescribeAcls, guard=_on_cluster(Operation.DESCRIBE, lambda request: _REFUSED)),
    Passed(
        key=ApiKey.CreateAcls,
        guard=_on_cluster(
            Operation.ALTER, lambda request: {"results": [_REFUSED for _ in request.creations]}
        ),
    ),
    Passed(
        key=ApiKey.DeleteAcls,
        guard=_on_cluster(
            Operation.ALTER, lambda request: {"filter_results": [_REFUSED for _ in request.filters]}
        ),
    ),
    Passed(
        key=ApiKey.DescribeConfigs,
        guard=Entries(
            "resources", "results", _on_config(Operation.DESCRIBE_CONFIGS), _refused_resource
        ).guard,
        groups=group_configs.screen_descriptions,
        brokers=broker_configs.screen_descriptions,
    ),
    Passed(
        key=ApiKey.AlterConfigs,
        guard=Entries("resources", "responses", _on_config(Operation.ALTER_CONFIGS), _refused_resource).guard,
        groups=group_configs.screen_alterations,
        brokers=broker_configs.screen_alterations,
        internal=internal_topics.screen_configs,
    ),
    Passed(key=ApiKey.AlterReplicaLogDirs, needs=Operation.ALTER),
    Passed(key=ApiKey.DescribeLogDirs, needs=Operation.DESCRIBE),
    Passed(
        key=ApiKey.CreatePartitions,
        guard=Entries("topics", "results", _on_topic(Operation.ALTER), _refused_by_name).guard,
        internal=internal_topics.screen_partitions,
    ),
    Passed(key=ApiKey.ElectLeaders, needs=Operation.ALTER),
    Passed(
        key=ApiKey.IncrementalAlterConfigs,
        guard=Entries("resources", "responses", _on_config(Operation.ALTER_CONFIGS), _refused_resource).guard,
        groups=group_configs.screen_incremental_alterations,
        brokers=broker_configs.screen_alterations,
        internal=internal_topics.screen_configs,
    ),
    Passed(
        key=ApiKey.AlterPartitionReassignments,
        needs=Operation.ALTER,
        internal=internal_topics.screen_reassignments,
    ),
    Passed(key=ApiKey.ListPartitionReassignments, needs=Operation.DESCRIBE),
    Passed(key=ApiKey.DescribeClientQuotas, needs=Operation.DESCRIBE_CONFIGS),
    Passed(key=ApiKey.AlterClientQuotas, needs=Operation.ALTER_CONFIGS),
    Passed(key=ApiKey.DescribeUserScramCredentials, needs=Operation.DESCRIBE),
    Passed(key=ApiKey.AlterUserScramCredentials, needs=Operation.ALTER),
    Passed(
        key=ApiKey.DescribeQuorum,
        needs=Operation.DESCRIBE,
        rewrite=addresses.rewrite_quorum,
        is_rewritten=addresses.names_controllers,
    ),
    Passed(key=ApiKey.UpdateFeatures, needs=Operation.ALTER),
    Passed(key=ApiKey.DescribeCluster, guard=guard_cluster, rewrite=addresses.rewrite_cluster),
    Passed(
        key=ApiKey.DescribeProducers,
        guard=Entries("topics", "topics", _on_topic(Operation.READ), _refused_producers).guard,
    ),
    Passed(key=ApiKey.UnregisterBroker, needs=Operation.ALTER),
    Passed(key=NewerApiKey.UnregisterController, needs=Operation.ALTER),
    Passed(key=ApiKey.DescribeTransactions, guard=guard_description),
    Passed(key=ApiKey.ListTransactions, guard=guard_transactions),
    *(Passed(key=key, is_free=True) for key in (ApiKey.GetTelemetrySubscriptions, ApiKey.PushTelemetry)),
    Passed(
        key=ApiKey.ListConfigResources,
        guard=_on_cluster(Operation.DESCRIBE_CONFIGS, lambda request: {"error_code": ERRORS[_CLUSTER]}),
        groups=group_configs.screen_list,
    ),
    # Hidden because the cursor of its response may name a topic that the client may not see. Clients use
    # Metadata instead.
    Passed(
        key=ApiKey.DescribeTopicPartitions, is_hidden=True, rewrite=internal_topics.rewrite_topic_partitions
    ),
)
"""The APIs that pass to brokers, by key. `gateway.apis` has the row of ApiVersions, which needs all tables.
"""
