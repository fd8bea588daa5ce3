"""ACLs of the requests that pass to the brokers, if the gateway sends them under its own principal. A broker
then checks that principal, so the gateway has to check the client's. See docs/decisions/0022.

What is checked is what KafkaApis and ControllerApis of Kafka check. Entries that are denied are taken out of
the request, and get their error in the response. A request that is in no table here is for super users.
"""

from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any

from gateway.apis.context import RequestContext
from gateway.apis.guards import ERRORS, Entries, Guard, may_on_cluster
from gateway.apis.passed_metadata import guard_cluster, guard_metadata
from gateway.apis.passed_records import guard_fetch, guard_produce
from gateway.apis.passed_transactions import (
    guard_addition,
    guard_description,
    guard_end,
    guard_find,
    guard_producer_id,
    guard_transactions,
)
from gateway.apis.screened import Screened
from gateway.authorization.acls import CLUSTER_NAME, Operation, ResourceType
from gateway.wire import beside
from gateway.wire.codec import Fields
from gateway.wire.errors import GatewayError
from gateway.wire.framing import ProtocolError
from gateway.wire.log_text import quoted

_TOPIC, _GROUP, _CLUSTER = ResourceType.TOPIC, ResourceType.GROUP, ResourceType.CLUSTER
_TRANSACTION = ResourceType.TRANSACTIONAL_ID


async def guard(context: RequestContext, message: bytes) -> Screened | None:
    """Check a request that passes to a broker. Returns None if it may pass unchanged. Raises ProtocolError if
    the client may not send it, and the gateway has no response for that. Raises UpstreamLost.
    """
    authorizer = context.services.authorizer
    api_key = context.header.api_key
    if authorizer is None or api_key in _FREE or authorizer.is_super_user(context.principal):
        return None
    if api_key in _GUARDS:
        return await _GUARDS[api_key](context, message)
    operation = _CLUSTER_OPERATIONS.get(api_key)
    if operation is not None and may_on_cluster(context, operation):
        return None
    raise ProtocolError(f"{quoted(context.principal)} may not send a request of api {api_key}")


def _on_topic(
    operation: Operation, name: str = "name"
) -> Callable[[RequestContext, Any], GatewayError | None]:
    """The check of an entry that names a topic in this field."""

    def error(context: RequestContext, entry: Any) -> GatewayError | None:
        return None if context.may(operation, _TOPIC, getattr(entry, name)) else ERRORS[_TOPIC]

    return error


def _creation(context: RequestContext, topic: Any) -> GatewayError | None:
    may = may_on_cluster(context, Operation.CREATE) or context.may(Operation.CREATE, _TOPIC, topic.name)
    return None if may else ERRORS[_TOPIC]


# ConfigResource.Type. All others are settings of the cluster.
_CONFIG_TYPES: Mapping[int, ResourceType] = MappingProxyType({2: _TOPIC, 32: _GROUP})


def _on_config(operation: Operation) -> Callable[[RequestContext, Any], GatewayError | None]:
    def error(context: RequestContext, resource: Any) -> GatewayError | None:
        kind = _CONFIG_TYPES.get(resource.resource_type, _CLUSTER)
        name = CLUSTER_NAME if kind is _CLUSTER else resource.resource_name
        return None if context.may(operation, kind, name) else ERRORS[kind]

    return error


def _named(entry: Any, error: GatewayError) -> Fields:
    return {"name": entry.name, "error_code": error}


def _configured(resource: Any, error: GatewayError) -> Fields:
    key = {"resource_type": resource.resource_type, "resource_name": resource.resource_name}
    return {**key, "error_code": error}


def _listed_offsets(topic: Any, error: GatewayError) -> Fields:
    failed = {"error_code": error, "timestamp": -1, "offset": -1}
    return {
        "name": topic.name,
        "partitions": [{"partition_index": p.partition_index, **failed} for p in topic.partitions],
    }


def _deleted_records(topic: Any, error: GatewayError) -> Fields:
    failed = {"error_code": error, "low_watermark": -1}
    return {
        "name": topic.name,
        "partitions": [{"partition_index": p.partition_index, **failed} for p in topic.partitions],
    }


def _epochs(topic: Any, error: GatewayError) -> Fields:
    failed = {"error_code": error, "leader_epoch": -1, "end_offset": -1}
    return {
        "topic": topic.topic,
        "partitions": [{"partition": p.partition, **failed} for p in topic.partitions],
    }


def _producers(topic: Any, error: GatewayError) -> Fields:
    indexes: Sequence[int] = topic.partition_indexes
    return {
        "name": topic.name,
        "partitions": [{"partition_index": index, "error_code": error} for index in indexes],
    }


_CREATED = Entries("topics", "topics", _creation, _named)


async def _guard_creation(context: RequestContext, message: bytes) -> Screened | None:
    """CreateTopics. Only a client that may describe the settings of its new topic sees them."""

    def change(response: Any) -> None:
        for topic in response.topics:
            if not topic.error_code and not context.may(Operation.DESCRIBE_CONFIGS, _TOPIC, topic.name):
                topic.topic_config_error_code = ERRORS[_TOPIC]
                topic.num_partitions, topic.replication_factor, topic.configs = -1, -1, []

    screened = await _CREATED.guard(context, message)
    if screened is None:
        return Screened(message, {}, change)
    return Screened(screened.remaining, screened.refused, change)


_FIRST_DELETE_BY_ID = 6
_DELETED_NAMES = Entries(
    "topic_names",
    "responses",
    lambda context, name: None if context.may(Operation.DELETE, _TOPIC, name) else ERRORS[_TOPIC],
    lambda name, error: {"name": name, "error_code": error},
)


async def _guard_deletion(context: RequestContext, message: bytes) -> Screened | None:
    """DeleteTopics, by name and from version 6 on also by id. An id that the gateway does not know is
    refused, because nothing tells which ACLs are about it.
    """
    if context.version < _FIRST_DELETE_BY_ID:
        return await _DELETED_NAMES.guard(context, message)
    request = await beside.decode_passed(context.header, message)
    ids = [topic.topic_id for topic in request.topics if not topic.name]
    found = await context.services.cluster.topics_by_id(ids)
    names = {topic_id: topic.name for topic_id, topic in found.items()}

    def error(_: RequestContext, entry: Any) -> GatewayError | None:
        name = entry.name or names.get(entry.topic_id)
        if name is None:
            return GatewayError.UNKNOWN_TOPIC_ID
        return None if context.may(Operation.DELETE, _TOPIC, name) else ERRORS[_TOPIC]

    def refused(entry: Any, why: GatewayError) -> Fields:
        key = {"name": entry.name} if entry.name else {"name": None, "topic_id": entry.topic_id}
        return {**key, "error_code": why}

    return await Entries("topics", "responses", error, refused).guard(context, message)


def _on_cluster(operation: Operation, refused: Callable[[Any], Fields]) -> Guard:
    """The check of a request about the cluster, with the response of one that is refused."""

    async def guard_request(context: RequestContext, message: bytes) -> Screened | None:
        if may_on_cluster(context, operation):
            return None
        return Screened(None, refused(await beside.decode_passed(context.header, message)))

    return guard_request


_REFUSED = {"error_code": ERRORS[_CLUSTER], "error_message": "Cluster authorization failed."}

PRODUCE, FETCH, LIST_OFFSETS, METADATA, FIND_COORDINATOR = 0, 1, 2, 3, 10
CREATE_TOPICS, DELETE_TOPICS, DELETE_RECORDS, INIT_PRODUCER_ID, EPOCHS = 19, 20, 21, 22, 23
ADD_PARTITIONS, END_TXN, DESCRIBE_ACLS, CREATE_ACLS, DELETE_ACLS = 24, 26, 29, 30, 31
DESCRIBE_CONFIGS, ALTER_CONFIGS, CREATE_PARTITIONS, INCREMENTAL_ALTER_CONFIGS = 32, 33, 37, 44
DESCRIBE_CLUSTER, DESCRIBE_PRODUCERS, DESCRIBE_TRANSACTIONS, LIST_TRANSACTIONS = 60, 61, 65, 66
LIST_CONFIG_RESOURCES, DESCRIBE_TOPIC_PARTITIONS = 74, 75

_GUARDS: Mapping[int, Guard] = MappingProxyType(
    {
        PRODUCE: guard_produce,
        FETCH: guard_fetch,
        LIST_OFFSETS: Entries("topics", "topics", _on_topic(Operation.DESCRIBE), _listed_offsets).guard,
        METADATA: guard_metadata,
        FIND_COORDINATOR: guard_find,
        CREATE_TOPICS: _guard_creation,
        DELETE_TOPICS: _guard_deletion,
        DELETE_RECORDS: Entries("topics", "topics", _on_topic(Operation.DELETE), _deleted_records).guard,
        INIT_PRODUCER_ID: guard_producer_id,
        EPOCHS: Entries("topics", "topics", _on_topic(Operation.DESCRIBE, "topic"), _epochs).guard,
        ADD_PARTITIONS: guard_addition,
        END_TXN: guard_end,
        DESCRIBE_ACLS: _on_cluster(Operation.DESCRIBE, lambda request: _REFUSED),
        CREATE_ACLS: _on_cluster(
            Operation.ALTER, lambda request: {"results": [_REFUSED for _ in request.creations]}
        ),
        DELETE_ACLS: _on_cluster(
            Operation.ALTER, lambda request: {"filter_results": [_REFUSED for _ in request.filters]}
        ),
        DESCRIBE_CONFIGS: Entries(
            "resources", "results", _on_config(Operation.DESCRIBE_CONFIGS), _configured
        ).guard,
        ALTER_CONFIGS: Entries(
            "resources", "responses", _on_config(Operation.ALTER_CONFIGS), _configured
        ).guard,
        CREATE_PARTITIONS: Entries("topics", "results", _on_topic(Operation.ALTER), _named).guard,
        INCREMENTAL_ALTER_CONFIGS: Entries(
            "resources", "responses", _on_config(Operation.ALTER_CONFIGS), _configured
        ).guard,
        DESCRIBE_CLUSTER: guard_cluster,
        DESCRIBE_PRODUCERS: Entries("topics", "topics", _on_topic(Operation.READ), _producers).guard,
        DESCRIBE_TRANSACTIONS: guard_description,
        LIST_TRANSACTIONS: guard_transactions,
        LIST_CONFIG_RESOURCES: _on_cluster(
            Operation.DESCRIBE_CONFIGS, lambda request: {"error_code": ERRORS[_CLUSTER]}
        ),
    }
)

GUARDED = frozenset(_GUARDS)
"""APIs of which requests or responses may have to be decoded."""

HIDDEN = frozenset({DESCRIBE_TOPIC_PARTITIONS})
"""Absent from ApiVersions while these checks are on: the cursor of its response may name a topic that the
client may not see. Clients use Metadata instead."""

# ApiVersions, SaslHandshake, SaslAuthenticate, GetTelemetrySubscriptions, PushTelemetry: Kafka has no ACLs
# for these.
_FREE = frozenset({18, 17, 36, 71, 72})

# The operation on the cluster that a request without a guard needs.
_CLUSTER_OPERATIONS: Mapping[int, Operation] = MappingProxyType(
    {
        27: Operation.ALTER,  # WriteTxnMarkers
        34: Operation.ALTER,  # AlterReplicaLogDirs
        35: Operation.DESCRIBE,  # DescribeLogDirs
        43: Operation.ALTER,  # ElectLeaders
        45: Operation.ALTER,  # AlterPartitionReassignments
        46: Operation.DESCRIBE,  # ListPartitionReassignments
        48: Operation.DESCRIBE_CONFIGS,  # DescribeClientQuotas
        49: Operation.ALTER_CONFIGS,  # AlterClientQuotas
        50: Operation.DESCRIBE,  # DescribeUserScramCredentials
        51: Operation.ALTER,  # AlterUserScramCredentials
        55: Operation.DESCRIBE,  # DescribeQuorum
        57: Operation.ALTER,  # UpdateFeatures
        64: Operation.ALTER,  # UnregisterBroker
    }
)
