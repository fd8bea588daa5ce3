"""AddOffsetsToTxn (key 25) and TxnOffsetCommit (key 28): no offsets in transactions are supported.

ApiVersions does not name these two. A client that sends them nevertheless gets an error. A forwarded
request would be wrong, because the broker's own coordinator would store offsets that the group
never sees.
"""

from typing import Any

from gateway.apis.context import RequestContext
from gateway.wire.codec import Fields
from state.errors import ErrorCode


async def serve_add_offsets(context: RequestContext, request: Any) -> Fields:
    """Refuse."""
    return {"error_code": ErrorCode.UNSUPPORTED_VERSION}


async def serve_commit(context: RequestContext, request: Any) -> Fields:
    """Refuse every partition."""
    return {
        "topics": [
            {
                "name": topic.name,
                "partitions": [
                    {"partition_index": p.partition_index, "error_code": ErrorCode.UNSUPPORTED_VERSION}
                    for p in topic.partitions
                ],
            }
            for topic in request.topics
        ]
    }
