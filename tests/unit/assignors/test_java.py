"""Comparison with Kafka: recorded assignments of the assignors of kafka-clients 4.3.0, for random groups.

In these groups static and dynamic members alternate, subscriptions differ, and topics are unknown, empty or
named twice. kafka-python handles these cases wrongly, so it cannot be the reference.
"""

import re
from dataclasses import dataclass

import pytest

from assignors.kafka import ASSIGNORS
from assignors.kafka.api import MemberId, MemberSubscription, Subscription, TopicPartition

# assignor topic:count ...
#     member id[/instance id] [subscribed topics] partitions assigned
RECORDED = """
range a:1 b:0 c:2
    m1 [c b ghost]
    m7/i2 [b c a b ghost] a0 c0
    m4 [b c a]
    m2 [b c a]
    m5 [c b a]
    m3/i7 [a c] c1

range a:3 b:1 d:3 e:0
    m1 [e b a d] a1 d1
    m6 [a d a] a2 d2
    m3/i6 [e d b a] a0 b0 d0

range a:3 b:0
    m2 [a] a2
    m8 [a b]
    m7/i2 [a b] a0
    m6/i6 [b a b ghost] a1
    m1/i3 [b]
    m4 [a b]

range b:2 d:0 e:5
    m7/i6 [e d] e3
    m5/i2 [d]
    m8/i3 [e b d] b0 e0 e1
    m4 [b d e] e4
    m3/i4 [e d b] b1 e2

range a:1 b:3 d:3 e:5
    m1 [d] d0 d1 d2
    m4 []
    m2 [a] a0

range a:1 b:3 c:5 e:3
    m5 [e b a c] b2 c2 c3 e1
    m6 [e a b] e2
    m7/i6 [a ghost] a0
    m3 [b] b0
    m8 [a c e b] c4
    m4 [a b e c a] b1 c0 c1 e0

range c:5 d:0 e:5
    m5/i7 [d e d] e0 e1 e2
    m8 [d]
    m1 [d e c] c0 c1 c2 c3 c4 e3 e4

range d:1 e:1
    m7/i8 [e]
    m1 [e]
    m8/i5 [e e] e0

range a:5 c:5 e:0
    m4/i6 [e a] a3 a4
    m1 [c] c4
    m5/i4 [a e c] a0 a1 a2 c0 c1
    m8/i7 [c c] c2 c3

range a:5 b:3
    \N{HALFWIDTH WHITE CIRCLE}-1 [a] a4
    \N{GRINNING FACE}-1 [b a] a2 a3 b2
    m/\N{GRINNING FACE} [a] a0 a1
    n/\N{HALFWIDTH WHITE CIRCLE} [b] b0 b1

roundrobin a:1 b:0 c:2
    m1 [c b ghost] c1
    m7/i2 [b c a b ghost] a0
    m4 [b c a]
    m2 [b c a]
    m5 [c b a]
    m3/i7 [a c] c0

roundrobin a:3 b:1 d:3 e:0
    m1 [e b a d] a1 d0
    m6 [a d a] a2 d1
    m3/i6 [e d b a] a0 b0 d2

roundrobin a:3 b:0
    m2 [a] a2
    m8 [a b]
    m7/i2 [a b] a0
    m6/i6 [b a b ghost] a1
    m1/i3 [b]
    m4 [a b]

roundrobin b:2 d:0 e:5
    m7/i6 [e d] e0 e4
    m5/i2 [d]
    m8/i3 [e b d] b0 e2
    m4 [b d e] e1
    m3/i4 [e d b] b1 e3

roundrobin a:1 b:3 d:3 e:5
    m1 [d] d0 d1 d2
    m4 []
    m2 [a] a0

roundrobin a:1 b:3 c:5 e:3
    m5 [e b a c] b2 c2 e0
    m6 [e a b] e1
    m7/i6 [a ghost] a0
    m3 [b] b0
    m8 [a c e b] c0 c3 e2
    m4 [a b e c a] b1 c1 c4

roundrobin c:5 d:0 e:5
    m5/i7 [d e d] e0 e2 e4
    m8 [d]
    m1 [d e c] c0 c1 c2 c3 c4 e1 e3

roundrobin d:1 e:1
    m7/i8 [e]
    m1 [e]
    m8/i5 [e e] e0

roundrobin a:5 c:5 e:0
    m4/i6 [e a] a1 a3
    m1 [c] c1 c4
    m5/i4 [a e c] a0 a2 a4 c2
    m8/i7 [c c] c0 c3

roundrobin a:5 b:3
    \N{HALFWIDTH WHITE CIRCLE}-1 [a] a2
    \N{GRINNING FACE}-1 [b a] a1 a4 b1
    m/\N{GRINNING FACE} [a] a0 a3
    n/\N{HALFWIDTH WHITE CIRCLE} [b] b0 b2
"""


@dataclass(frozen=True)
class Case:
    assignor: str
    counts: dict[str, int]
    members: dict[MemberId, MemberSubscription]
    answer: dict[MemberId, list[TopicPartition]]


def parse(block: str) -> Case:
    head, *lines = block.splitlines()
    assignor, *counts = head.split()
    case = Case(assignor, {topic: int(count) for topic, count in (c.split(":") for c in counts)}, {}, {})
    for line in lines:
        match = re.fullmatch(r" {4}([^/]+?)(?:/(.+))? \[(.*)\](.*)", line)
        assert match, line
        member_id, instance_id, topics, partitions = match.groups()
        case.members[member_id] = MemberSubscription(Subscription(tuple(topics.split())), instance_id)
        case.answer[member_id] = [TopicPartition(p[0], int(p[1:])) for p in partitions.split()]
    return case


@pytest.mark.parametrize("block", RECORDED.strip().split("\n\n"), ids=lambda block: block.splitlines()[0])
def test_the_answer_is_kafkas(block: str) -> None:
    case = parse(block)
    assert ASSIGNORS[case.assignor].assign(case.counts, case.members) == case.answer
