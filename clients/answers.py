"""What a client does with the records of its reply partition. It decodes the messages that it waits for
(`Pending.awaits`), and no others.
"""

from collections.abc import Callable, Iterable
from typing import Union

import msgspec
import structlog

from clients.pending import AnyResponse, Pending
from kafka_why.contract.kafka import requests as kafka
from kafka_why.contract.messages import ErrorResponse
from kafka_why.contract.pack import NO_PACKS, unpack
from kafka_why.contract.rocketmq import requests as rocketmq
from kafka_why.contract.rocketmq.responses import AnyToConnection, ToConnection

# Called with unsolicited messages to connections of RocketMQ's clients. It runs on the reader's thread: keep
# it short.
Listener = Callable[[AnyToConnection], None]

_decoder: msgspec.json.Decoder[AnyResponse | AnyToConnection] = msgspec.json.Decoder(
    Union[(*kafka.ANSWERS, *rocketmq.ANSWERS, ErrorResponse, AnyToConnection)]
)

log = structlog.get_logger()


def settle(values: Iterable[bytes], pending: Pending, listener: Listener | None) -> list[str]:
    """Settle the requests that these records answer. `listener` gets the messages to connections, in order.

    Returns the correlation ids of the requests that a coordinator without packs has refused.
    """
    answers: list[AnyResponse] = []
    refused: list[str] = []
    for value in values:
        for encoded in unpack(value):
            if not pending.awaits(encoded):
                continue
            try:
                message = decode_response(encoded)
            except (msgspec.DecodeError, UnicodeDecodeError) as error:
                pending.counts.malformed += 1
                log.warning("an answer cannot be read", error=str(error))
                continue
            if isinstance(message, ErrorResponse) and message.error_message.startswith(NO_PACKS):
                refused.append(message.correlation_id)
            elif not isinstance(message, ToConnection):
                answers.append(message)
            elif listener is not None:
                pending.settle(answers)  # they are before the message
                answers.clear()
                listener(message)
    pending.settle(answers)
    return refused


def decode_response(value: bytes) -> AnyResponse | AnyToConnection:
    """Decode a message of the responses topic, of which a record may hold several
    (`kafka_why.contract.pack`).

    Raises msgspec.DecodeError or UnicodeDecodeError.
    """
    return _decoder.decode(value)
