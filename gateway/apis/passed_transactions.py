"""ACLs of the requests about transactions that pass to the brokers."""

from collections.abc import Mapping
from typing import Any

from gateway.apis.context import RequestContext
from gateway.apis.guards import ERRORS, Entries, may_on_cluster
from gateway.apis.screened import Screened
from gateway.authorization.acls import Operation, ResourceType
from gateway.wire import beside
from gateway.wire.errors import GatewayError

_TOPIC, _TRANSACTION = ResourceType.TOPIC, ResourceType.TRANSACTIONAL_ID


def on_transaction(context: RequestContext, transactional_id: str) -> GatewayError | None:
    """The error of a client that may not describe the transaction."""
    may = context.may(Operation.DESCRIBE, _TRANSACTION, transactional_id)
    return None if may else ERRORS[_TRANSACTION]


_FIRST_FIND_OF_SEVERAL = 4
_NOWHERE = {"node_id": -1, "host": "", "port": -1}
_FOUND = Entries(
    "coordinator_keys",
    "coordinators",
    on_transaction,
    lambda key, error: {"key": key, **_NOWHERE, "error_code": error, "error_message": ""},
)


async def guard_find(context: RequestContext, message: bytes) -> Screened | None:
    """FindCoordinator of transactions."""
    if context.version >= _FIRST_FIND_OF_SEVERAL:
        return await _FOUND.guard(context, message)
    request = await beside.decode_passed(context.header, message)
    error = on_transaction(context, request.key)
    if error is None:
        return None
    return Screened(None, {**_NOWHERE, "error_code": error, "error_message": error.name})


async def guard_producer_id(context: RequestContext, message: bytes) -> Screened | None:
    """InitProducerId: a transaction's id, or for idempotence WRITE on any topic."""
    request = await beside.decode_passed(context.header, message)
    authorizer = context.services.authorizer
    error = None
    if request.transactional_id is not None:
        needed = [Operation.WRITE, *([Operation.TWO_PHASE_COMMIT] if request.enable2_pc else [])]
        if not all(context.may(one, _TRANSACTION, request.transactional_id) for one in needed):
            error = ERRORS[_TRANSACTION]
    elif not may_on_cluster(context, Operation.IDEMPOTENT_WRITE) and authorizer is not None:
        may = authorizer.may_somewhere(context.principal, context.client_host, Operation.WRITE, _TOPIC)
        error = None if may else ERRORS[ResourceType.CLUSTER]
    if error is None:
        return None
    return Screened(None, {"error_code": error, "producer_id": -1, "producer_epoch": -1})


async def guard_end(context: RequestContext, message: bytes) -> Screened | None:
    """EndTxn."""
    request = await beside.decode_passed(context.header, message)
    if context.may(Operation.WRITE, _TRANSACTION, request.transactional_id):
        return None
    return Screened(None, {"error_code": ERRORS[_TRANSACTION]})


_FIRST_ADD_BY_BROKERS = 4


async def guard_addition(context: RequestContext, message: bytes) -> Screened | None:
    """AddPartitionsToTxn, which adds all partitions or none. From version 4 on only brokers send it."""
    request = await beside.decode_passed(context.header, message)
    if context.version >= _FIRST_ADD_BY_BROKERS:
        if may_on_cluster(context, Operation.CLUSTER_ACTION):
            return None
        return Screened(None, {"error_code": ERRORS[ResourceType.CLUSTER]})
    topics: list[Any] = request.v3_and_below_topics
    errors: Mapping[str, GatewayError]
    if not context.may(Operation.WRITE, _TRANSACTION, request.v3_and_below_transactional_id):
        errors = {topic.name: ERRORS[_TRANSACTION] for topic in topics}
    else:
        may = await context.slices().each(lambda t: context.may(Operation.WRITE, _TOPIC, t.name), topics)
        denied = {topic.name for topic, is_allowed in zip(topics, may, strict=True) if not is_allowed}
        if not denied:
            return None
        errors = {
            topic.name: ERRORS[_TOPIC] if topic.name in denied else GatewayError.OPERATION_NOT_ATTEMPTED
            for topic in topics
        }
    results = [
        {
            "name": topic.name,
            "results_by_partition": [
                {"partition_index": index, "partition_error_code": errors[topic.name]}
                for index in topic.partitions
            ],
        }
        for topic in topics
    ]
    return Screened(None, {"results_by_topic_v3_and_below": results})


_DESCRIBED = Entries(
    "transactional_ids",
    "transaction_states",
    on_transaction,
    lambda name, error: {"transactional_id": name, "error_code": error},
)


async def guard_description(context: RequestContext, message: bytes) -> Screened | None:
    """DescribeTransactions shows of a transaction's topics those that the client may describe."""

    def hide(response: Any) -> None:
        for state in response.transaction_states:
            state.topics = [
                topic for topic in state.topics if context.may(Operation.DESCRIBE, _TOPIC, topic.topic)
            ]

    screened = await _DESCRIBED.guard(context, message)
    if screened is None:
        return Screened(message, {}, hide)
    return Screened(screened.remaining, screened.refused, hide)


async def guard_transactions(context: RequestContext, message: bytes) -> Screened | None:
    """ListTransactions shows the transactions that the client may describe."""
    await beside.decode_passed(context.header, message)

    def hide(response: Any) -> None:
        response.transaction_states = [
            state
            for state in response.transaction_states
            if context.may(Operation.DESCRIBE, _TRANSACTION, state.transactional_id)
        ]

    return Screened(message, {}, hide)
