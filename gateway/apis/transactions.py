"""AddOffsetsToTxn (key 25) and TxnOffsetCommit (key 28): offsets in transactions are not done here.

ApiVersions does not name these two. A client that asks all the same is told so; let through, the broker's
own coordinator would take the offsets, and the group would never see them.
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
