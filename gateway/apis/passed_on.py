"""The requests that pass to the brokers: a row for each API that the gateway knows.

If the gateway sends them under its own principal, a broker checks that principal, so the gateway has to check
the client's (docs/decisions/0022). The checks are those of Kafka's KafkaApis and ControllerApis. Denied
entries are removed from the request, and get their error in the response. A request without a check in its
row is for super users.
"""

from collections.abc import Callable, Mapping
from functools import partial
from types import MappingProxyType
from typing import Any

from kafka.protocol.api_key import ApiKey

from gateway.apis import addresses, broker_configs, group_configs, internal_topics
from gateway.apis.api import ERRORS, EntryGuard, EntryList, PassedApi, Screened, may_on_cluster
from gateway.apis.context import RequestContext
from gateway.apis.passed_guards import (
    PRODUCE_TOPICS,
    guard_add_partitions,
    guard_describe_cluster,
    guard_describe_transactions,
    guard_end_txn,
    guard_fetch,
    guard_find_coordinator,
    guard_init_producer_id,
    guard_list_transactions,
    guard_metadata,
    guard_produce,
)
from gateway.authorization.acls import CLUSTER_NAME, Operation, ResourceType
from gateway.log_text import quoted
from gateway.wire import codec, offload
from gateway.wire.codec import Fields, GatewayError, NewerApiKey
from gateway.wire.framing import ProtocolError

_FIRST_PRODUCE_WITH_ENDPOINTS, _FIRST_FETCH_WITH_ENDPOINTS = 10, 16  # of the new leaders (KIP-951)
_TOPIC, _GROUP, _CLUSTER = ResourceType.TOPIC, ResourceType.GROUP, ResourceType.CLUSTER


async def guard(api: PassedApi | None, context: RequestContext, message: bytes) -> Screened | None:
    """Check the ACLs of a request that passes to a broker. Return None if it may pass unchanged.

    Raises UpstreamLost. Raises ProtocolError if a broker could decode the request differently, or if a client
    without the operation `needs` sends a request of an API without a guard.
    """
    authorizer, key = context.services.authorizer, context.header.api_key
    if authorizer is None or (api is not None and api.is_screened):
        return None
    if not authorizer.is_super_user(context.principal):
        if api is not None and api.guard is not None:
            return await api.guard(context, message)
        # Without a guard, the client needs the operation `needs` on the cluster, unless the API is free.
        is_allowed = api is not None and (
            api.is_free or (api.needs is not None and may_on_cluster(context, api.needs))
        )
        if not is_allowed:
            raise ProtocolError(f"{quoted(context.principal)} may not send a request of api {key}")
    if key in codec.REQUESTS:
        # Guards decode requests, too. This refuses a message that a broker could decode differently.
        await offload.decode_passed(context.header, message)
    return None


def _topic_error(
    operation: Operation, context: RequestContext, entry: Any, *, name_field: str = "name"
) -> GatewayError | None:
    """Return the error of an entry about a topic if the client lacks the operation on it, else None."""
    return None if context.may(operation, _TOPIC, getattr(entry, name_field)) else ERRORS[_TOPIC]


def _create_error(context: RequestContext, topic: Any) -> GatewayError | None:
    may_create_all = may_on_cluster(context, Operation.CREATE)
    is_allowed = may_create_all or context.may(Operation.CREATE, _TOPIC, topic.name)
    return None if is_allowed else ERRORS[_TOPIC]


# The types of resources with ACLs by ConfigResource.Type. Settings of all other types are those of the
# cluster.
_CONFIG_TYPES: Mapping[int, ResourceType] = MappingProxyType({2: _TOPIC, 32: _GROUP})


def _config_error(operation: Operation, context: RequestContext, resource: Any) -> GatewayError | None:
    kind = _CONFIG_TYPES.get(resource.resource_type, _CLUSTER)
    name = CLUSTER_NAME if kind is _CLUSTER else resource.resource_name
    return None if context.may(operation, kind, name) else ERRORS[kind]


def _refused_by_name(entry: Any, error: Fields) -> Fields:
    return {"name": entry.name, **error}


def _refused_resource(resource: Any, error: Fields) -> Fields:
    return {"resource_type": resource.resource_type, "resource_name": resource.resource_name, **error}


def _refused_partitions(
    topic: Any,
    error: Fields,
    *,
    topic_field: str = "name",
    partition_field: str = "partition_index",
    **other_fields: int,
) -> Fields:
    """Return a topic's part of a response. Each partition has the same error and `other_fields`."""
    failed = {**error, **other_fields}
    indexes = (getattr(partition, partition_field) for partition in topic.partitions)
    return {
        topic_field: getattr(topic, topic_field),
        "partitions": [{partition_field: index, **failed} for index in indexes],
    }


def _refused_producers(topic: Any, error: Fields) -> Fields:
    partitions = [{"partition_index": index, **error} for index in topic.partition_indexes]
    return {"name": topic.name, "partitions": partitions}


_CREATE_TOPICS = EntryGuard(
    request_field="topics", response_field="topics", refused_entry=_refused_by_name, error=_create_error
)
_DELETE_RECORDS = EntryGuard(
    request_field="topics",
    response_field="topics",
    refused_entry=partial(_refused_partitions, low_watermark=-1),
    error=partial(_topic_error, Operation.DELETE),
)
_ALTER_CONFIGS = EntryGuard(
    request_field="resources",
    response_field="responses",
    refused_entry=_refused_resource,
    error=partial(_config_error, Operation.ALTER_CONFIGS),
)
_CREATE_PARTITIONS = EntryGuard(
    request_field="topics",
    response_field="results",
    refused_entry=_refused_by_name,
    error=partial(_topic_error, Operation.ALTER),
)
_REASSIGN_PARTITIONS = EntryList(
    request_field="topics", response_field="responses", refused_entry=_refused_partitions
)


async def _guard_create_topics(context: RequestContext, message: bytes) -> Screened | None:
    """Require CREATE for each topic. As in Kafka, hide a new topic's settings from a client without
    DESCRIBE_CONFIGS.
    """

    async def hide_settings(response: Any) -> None:
        for topic in response.topics:
            if not topic.error_code and not context.may(Operation.DESCRIBE_CONFIGS, _TOPIC, topic.name):
                topic.topic_config_error_code = ERRORS[_TOPIC]
                topic.num_partitions, topic.replication_factor, topic.configs = -1, -1, []

    return await _CREATE_TOPICS.guard(context, message, hide_settings)


_FIRST_DELETE_BY_ID = 6
_DELETE_TOPICS_BY_NAME = EntryGuard(
    request_field="topic_names",
    response_field="responses",
    refused_entry=lambda name, error: {"name": name, **error},
    error=lambda context, name: None if context.may(Operation.DELETE, _TOPIC, name) else ERRORS[_TOPIC],
)
_DELETE_TOPICS = EntryList(
    request_field="topics",
    response_field="responses",
    refused_entry=lambda topic, error: {
        **({"name": topic.name} if topic.name else {"name": None, "topic_id": topic.topic_id}),
        **error,
    },
)


async def _guard_delete_topics(context: RequestContext, message: bytes) -> Screened | None:
    """Check the ACLs of a DeleteTopics. From version 6 on it may have topic ids."""
    if context.version < _FIRST_DELETE_BY_ID:
        return await _DELETE_TOPICS_BY_NAME.guard(context, message)
    request = await offload.decode_passed(context.header, message)
    ids = [topic.topic_id for topic in request.topics if not topic.name]
    topics_by_id = await context.services.cluster.topics_by_id(ids)
    names_by_id = {topic_id: topic.name for topic_id, topic in topics_by_id.items()}

    def error(entry: Any) -> GatewayError | None:
        name = entry.name or names_by_id.get(entry.topic_id)
        if name is None:
            # ACLs are about names, and this id has none.
            return GatewayError.UNKNOWN_TOPIC_ID
        return None if context.may(Operation.DELETE, _TOPIC, name) else ERRORS[_TOPIC]

    errors = await context.slices().each(error, request.topics)
    return await _DELETE_TOPICS.screen(context, message, request, errors)


async def _screen_delete_topics(context: RequestContext, message: bytes) -> Screened | None:
    """Remove internal topics from a DeleteTopics."""
    if context.version < _FIRST_DELETE_BY_ID:
        # An entry of these versions is a name.
        return await internal_topics.screen_list(_DELETE_TOPICS_BY_NAME, context, message, topic=str)
    return await internal_topics.screen_list(
        _DELETE_TOPICS, context, message, topic=internal_topics.name_or_id
    )


async def _guard_cluster(
    operation: Operation, refused: Callable[[Any], Fields], context: RequestContext, message: bytes
) -> Screened | None:
    """Check a request about the cluster. `refused` returns the response to a denied request."""
    request = await offload.decode_passed(context.header, message)
    if may_on_cluster(context, operation):
        return None
    return Screened(remaining=None, refused=refused(request))


_CLUSTER_REFUSED = {"error_code": ERRORS[_CLUSTER], "error_message": "Cluster authorization failed."}


ROWS = (
    PassedApi(
        key=ApiKey.Produce,
        guard=guard_produce,
        internal=partial(internal_topics.screen_list, PRODUCE_TOPICS, topic=internal_topics.name_or_id),
        rewrite=addresses.rewrite_endpoints,
        is_rewritten=partial(addresses.carries_endpoints, ApiKey.Produce, _FIRST_PRODUCE_WITH_ENDPOINTS),
        # Brokers list versions that they no longer accept, because librdkafka detects features by them.
        versions=range(codec.versions(ApiKey.Produce).stop),
    ),
    PassedApi(
        key=ApiKey.Fetch,
        guard=guard_fetch,
        rewrite=addresses.rewrite_endpoints,
        is_rewritten=partial(addresses.carries_endpoints, ApiKey.Fetch, _FIRST_FETCH_WITH_ENDPOINTS),
    ),
    PassedApi(
        key=ApiKey.ListOffsets,
        guard=EntryGuard(
            request_field="topics",
            response_field="topics",
            refused_entry=partial(_refused_partitions, timestamp=-1, offset=-1),
            error=partial(_topic_error, Operation.DESCRIBE),
        ).guard,
    ),
    PassedApi(key=ApiKey.Metadata, guard=guard_metadata, rewrite=addresses.rewrite_metadata),
    PassedApi(
        key=ApiKey.FindCoordinator, guard=guard_find_coordinator, rewrite=addresses.rewrite_coordinators
    ),
    PassedApi(
        key=ApiKey.CreateTopics,
        guard=_guard_create_topics,
        internal=partial(internal_topics.screen_list, _CREATE_TOPICS),
    ),
    PassedApi(key=ApiKey.DeleteTopics, guard=_guard_delete_topics, internal=_screen_delete_topics),
    PassedApi(
        key=ApiKey.DeleteRecords,
        guard=_DELETE_RECORDS.guard,
        internal=partial(internal_topics.screen_list, _DELETE_RECORDS, error_details={}),
    ),
    PassedApi(key=ApiKey.InitProducerId, guard=guard_init_producer_id),
    PassedApi(
        key=ApiKey.OffsetForLeaderEpoch,
        guard=EntryGuard(
            request_field="topics",
            response_field="topics",
            refused_entry=partial(
                _refused_partitions,
                topic_field="topic",
                partition_field="partition",
                leader_epoch=-1,
                end_offset=-1,
            ),
            error=partial(_topic_error, Operation.DESCRIBE, name_field="topic"),
        ).guard,
    ),
    PassedApi(
        key=ApiKey.AddPartitionsToTxn,
        guard=guard_add_partitions,
        internal=internal_topics.screen_add_partitions,
    ),
    PassedApi(key=ApiKey.EndTxn, guard=guard_end_txn),
    PassedApi(
        key=ApiKey.WriteTxnMarkers, needs=Operation.ALTER, internal=internal_topics.screen_write_markers
    ),
    PassedApi(
        key=ApiKey.DescribeAcls,
        guard=partial(_guard_cluster, Operation.DESCRIBE, lambda request: _CLUSTER_REFUSED),
    ),
    PassedApi(
        key=ApiKey.CreateAcls,
        guard=partial(
            _guard_cluster,
            Operation.ALTER,
            lambda request: {"results": [_CLUSTER_REFUSED for _ in request.creations]},
        ),
    ),
    PassedApi(
        key=ApiKey.DeleteAcls,
        guard=partial(
            _guard_cluster,
            Operation.ALTER,
            lambda request: {"filter_results": [_CLUSTER_REFUSED for _ in request.filters]},
        ),
    ),
    PassedApi(
        key=ApiKey.DescribeConfigs,
        guard=EntryGuard(
            request_field="resources",
            response_field="results",
            refused_entry=_refused_resource,
            error=partial(_config_error, Operation.DESCRIBE_CONFIGS),
        ).guard,
        groups=group_configs.screen_descriptions,
        brokers=broker_configs.screen_descriptions,
    ),
    PassedApi(
        key=ApiKey.AlterConfigs,
        guard=_ALTER_CONFIGS.guard,
        groups=group_configs.screen_alterations,
        brokers=broker_configs.screen_alterations,
        internal=partial(internal_topics.screen_list, _ALTER_CONFIGS, topic=internal_topics.config_topic),
    ),
    PassedApi(key=ApiKey.AlterReplicaLogDirs, needs=Operation.ALTER),
    PassedApi(key=ApiKey.DescribeLogDirs, needs=Operation.DESCRIBE),
    PassedApi(
        key=ApiKey.CreatePartitions,
        guard=_CREATE_PARTITIONS.guard,
        internal=partial(internal_topics.screen_list, _CREATE_PARTITIONS),
    ),
    PassedApi(key=ApiKey.ElectLeaders, needs=Operation.ALTER),
    PassedApi(
        key=ApiKey.IncrementalAlterConfigs,
        guard=_ALTER_CONFIGS.guard,
        groups=group_configs.screen_incremental_alterations,
        brokers=broker_configs.screen_alterations,
        internal=partial(internal_topics.screen_list, _ALTER_CONFIGS, topic=internal_topics.config_topic),
    ),
    PassedApi(
        key=ApiKey.AlterPartitionReassignments,
        needs=Operation.ALTER,
        internal=partial(internal_topics.screen_list, _REASSIGN_PARTITIONS),
    ),
    PassedApi(key=ApiKey.ListPartitionReassignments, needs=Operation.DESCRIBE),
    PassedApi(key=ApiKey.DescribeClientQuotas, needs=Operation.DESCRIBE_CONFIGS),
    PassedApi(key=ApiKey.AlterClientQuotas, needs=Operation.ALTER_CONFIGS),
    PassedApi(key=ApiKey.DescribeUserScramCredentials, needs=Operation.DESCRIBE),
    PassedApi(key=ApiKey.AlterUserScramCredentials, needs=Operation.ALTER),
    PassedApi(
        key=ApiKey.DescribeQuorum,
        needs=Operation.DESCRIBE,
        rewrite=addresses.rewrite_quorum,
        is_rewritten=addresses.names_controllers,
    ),
    PassedApi(key=ApiKey.UpdateFeatures, needs=Operation.ALTER),
    PassedApi(key=ApiKey.DescribeCluster, guard=guard_describe_cluster, rewrite=addresses.rewrite_cluster),
    PassedApi(
        key=ApiKey.DescribeProducers,
        guard=EntryGuard(
            request_field="topics",
            response_field="topics",
            refused_entry=_refused_producers,
            error=partial(_topic_error, Operation.READ),
        ).guard,
    ),
    PassedApi(key=ApiKey.UnregisterBroker, needs=Operation.ALTER),
    PassedApi(key=NewerApiKey.UnregisterController, needs=Operation.ALTER),
    PassedApi(key=ApiKey.DescribeTransactions, guard=guard_describe_transactions),
    PassedApi(key=ApiKey.ListTransactions, guard=guard_list_transactions),
    *(PassedApi(key=key, is_free=True) for key in (ApiKey.GetTelemetrySubscriptions, ApiKey.PushTelemetry)),
    PassedApi(
        key=ApiKey.ListConfigResources,
        guard=partial(
            _guard_cluster, Operation.DESCRIBE_CONFIGS, lambda request: {"error_code": ERRORS[_CLUSTER]}
        ),
        groups=group_configs.screen_list,
    ),
    # Hidden because the cursor of its response may name a topic that the client may not see. Clients use
    # Metadata instead.
    PassedApi(
        key=ApiKey.DescribeTopicPartitions,
        is_hidden_if_checked=True,
        rewrite=internal_topics.rewrite_topic_partitions,
    ),
)
"""The APIs that pass to brokers, by key. `gateway.apis` has the row of ApiVersions, which needs all tables.
"""
