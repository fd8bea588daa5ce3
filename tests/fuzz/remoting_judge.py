"""Compares the gateway's reading of a remoting frame with RocketMQ's reading of the same bytes."""

from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

from kafka_why.remoting import bodies
from kafka_why.remoting.bodies import AssignmentQuery, ConsumerData, HeartbeatData, LockBatch, ModeSetting
from kafka_why.remoting.frames import WORD_BYTES, Header, decode_header, header_length
from kafka_why.remoting.strict_json import MalformedFrame
from tests.fuzz.judge import Finding
from tests.harness.kafkas_reader import RocketmqsReader

ALIKE = "read alike"
Reading = dict[str, Any]


class RemotingJudge:
    """Compares the readings, and counts the outcomes."""

    def __init__(self, rocketmq: RocketmqsReader) -> None:
        self._rocketmq = rocketmq
        self.counts: Counter[str] = Counter()

    def findings(self, frames: Sequence[bytes]) -> list[Finding]:
        """Return the frames among these that only the gateway reads, or that are read differently."""
        readings = zip(frames, self._rocketmq.read(frames), strict=True)
        return [Finding(frame, why) for frame, theirs in readings if (why := self._why(frame, theirs))]

    def _why(self, frame: bytes, theirs: Reading | None) -> str:
        self.counts["frames"] += 1
        try:
            ours = _read(frame)
        except MalformedFrame:
            self.counts["refused by both" if theirs is None else "refused by the gateway alone"] += 1
            return ""
        if theirs is None:
            return "only the gateway reads it"
        expected = _comparable(theirs)
        if ours != expected:
            return f"the gateway reads {ours}, RocketMQ {expected}"
        self.counts[ALIKE] += 1
        return ""


def _read(frame: bytes) -> Reading:
    """Return the gateway's reading. Raises MalformedFrame."""
    if len(frame) < WORD_BYTES:
        raise MalformedFrame("no header word")
    word = int.from_bytes(frame[:WORD_BYTES], signed=True)
    end = WORD_BYTES + header_length(len(frame), word)
    header, body = decode_header(word, frame[WORD_BYTES:end]), frame[end:]
    decode = _BODIES.get(header.code)
    return {
        "header": _of_header(header),
        "body": None if decode is None else decode(body),
        "bodyLength": len(body),
    }


def _of_header(header: Header) -> Reading:
    return {
        "code": header.code,
        "language": header.language,
        "version": header.version,
        "opaque": header.opaque,
        "flag": header.flag,
        "remark": header.remark,
        "extFields": header.ext_fields,
        "serializeTypeCurrentRPC": header.serialize_type.name,
    }


def _of_heartbeat(body: bytes) -> Reading:
    heartbeat: HeartbeatData = bodies.decode_heartbeat(body)
    return {
        "clientID": heartbeat.client_id,
        "producers": set(heartbeat.producer_groups),
        "consumers": {
            consumer.group_name: _of_consumer(consumer) for consumer in heartbeat.consumer_data_set
        },
        "heartbeatFingerprint": heartbeat.heartbeat_fingerprint,
        "isWithoutSub": heartbeat.is_without_sub,
    }


def _of_consumer(consumer: ConsumerData) -> Reading:
    return {
        "messageModel": consumer.message_model.name,
        "consumeType": consumer.consume_type.name,
        "consumeFromWhere": consumer.consume_from_where.name,
        "subscriptions": {
            one.topic: (
                one.sub_string,
                one.sub_version,
                one.expression_type,
                set(one.tags_set),
                set(one.code_set),
            )
            for one in consumer.subscription_data_set
        },
    }


def _of_lock(body: bytes) -> Reading:
    lock: LockBatch = bodies.decode_lock_batch(body)
    return {"consumerGroup": lock.consumer_group, "clientId": lock.client_id, "mqSet": set(lock.mq_set)}


def _of_query(body: bytes) -> Reading:
    query: AssignmentQuery = bodies.decode_query_assignment(body)
    return {
        "topic": query.topic,
        "consumerGroup": query.consumer_group,
        "clientId": query.client_id,
        "strategyName": query.strategy_name,
        "messageModel": query.message_model.name,
    }


def _of_mode(body: bytes) -> Reading:
    setting: ModeSetting = bodies.decode_set_message_request_mode(body)
    return {
        "topic": setting.topic,
        "consumerGroup": setting.consumer_group,
        "mode": setting.mode.name,
        "popShareQueueNum": setting.pop_share_queue_num,
    }


_BODIES: dict[int, Callable[[bytes], Reading]] = {
    34: _of_heartbeat,
    41: _of_lock,
    42: _of_lock,
    400: _of_query,
    401: _of_mode,
}


def _comparable(theirs: Reading) -> Reading:
    """Return RocketMQ's reading in the gateway's form: null is as good as nothing, and sets have no order."""
    header, body = dict(theirs["header"]), theirs["body"]
    del header["suspended"]
    header["remark"] = header["remark"] or None
    fields = header["extFields"] or {}
    header["extFields"] = {name: value for name, value in fields.items() if value is not None}
    if body is not None and header["code"] == 34:
        body = {
            "clientID": body["clientID"],
            "producers": {producer["groupName"] for producer in body["producerDataSet"]},
            "consumers": {one["groupName"]: _consumer(one) for one in body["consumerDataSet"]},
            "heartbeatFingerprint": body["heartbeatFingerprint"],
            "isWithoutSub": body["isWithoutSub"],
        }
    elif body is not None and header["code"] in (41, 42):
        queues = {(queue["topic"], queue["brokerName"], queue["queueId"]) for queue in body["mqSet"]}
        body = {"consumerGroup": body["consumerGroup"], "clientId": body["clientId"], "mqSet": queues}
    return {"header": header, "body": body, "bodyLength": theirs["bodyLength"]}


def _consumer(theirs: Reading) -> Reading:
    return {
        **{name: theirs[name] for name in ("messageModel", "consumeType", "consumeFromWhere")},
        "subscriptions": {
            one["topic"]: (
                *(one[name] for name in ("subString", "subVersion", "expressionType")),
                *(set(one[name] or ()) for name in ("tagsSet", "codeSet")),
            )
            for one in theirs["subscriptionDataSet"]
        },
    }
