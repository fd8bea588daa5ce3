"""Messages to a share coordinator, which kafka-python lacks: InitializeShareGroupState,
ReadShareGroupStateSummary and DeleteShareGroupState. They are made from Kafka's definitions in `schemas`, as
kafka-python makes its own.
"""

from types import new_class
from typing import Any

from kafka.protocol.api_message import ApiMessage

_SCHEMAS = "streaming.service.share_state.schemas"


def _message(name: str) -> Any:
    """The class of the message whose definition is in the file of this name."""
    return new_class(name, (ApiMessage,), {"load_json": _SCHEMAS})


InitializeShareGroupStateRequest = _message("InitializeShareGroupStateRequest")
InitializeShareGroupStateResponse = _message("InitializeShareGroupStateResponse")
ReadShareGroupStateSummaryRequest = _message("ReadShareGroupStateSummaryRequest")
ReadShareGroupStateSummaryResponse = _message("ReadShareGroupStateSummaryResponse")
DeleteShareGroupStateRequest = _message("DeleteShareGroupStateRequest")
DeleteShareGroupStateResponse = _message("DeleteShareGroupStateResponse")
