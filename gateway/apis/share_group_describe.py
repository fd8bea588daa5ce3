"""ShareGroupDescribe (key 77). The coordinator gets one request for each group."""

from kafka.protocol.api_key import ApiKey

from gateway.apis.api import Api
from gateway.apis.modern_groups import Description, assignment_fields
from gateway.apis.shares_at_brokers import HIDDEN, are_at_brokers
from gateway.wire.codec import Fields
from kafka_why.contract.kafka.responses import ShareGroupMemberDescription
from kafka_why.contract.kafka.share_requests import ShareGroupDescribe


def _member(member: ShareGroupMemberDescription) -> Fields:
    return {
        "member_id": member.member_id,
        "rack_id": member.rack_id,
        "member_epoch": member.member_epoch,
        "client_id": member.client_id,
        "client_host": member.client_host,
        "subscribed_topic_names": member.subscribed_topic_names,
        "assignment": assignment_fields(member.assignment),
    }


_DESCRIPTION = Description(
    ShareGroupDescribe,
    is_on=lambda services: services.share_groups.are_ours,
    assignments=lambda member: (member.assignment,),  # row SA2
    member=_member,
    hidden=HIDDEN,
)

API = Api(key=ApiKey.ShareGroupDescribe, serve=_DESCRIPTION.serve, is_passed=are_at_brokers)
