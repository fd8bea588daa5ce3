"""What only groups of the consumer protocol have: patterns, and the names of topics in Kafka 3.7 to 4.0."""

from kafka_why.observed.group import CONSUMER
from kafka_why.observed.observation import Observation
from kafka_why.observed.records import MemberSubscription, RegexResolved, SubscribedTopics


def changed(was: MemberSubscription, now: MemberSubscription) -> str:
    """Return what a member changed, "" if nothing that makes an epoch."""
    is_other = (was.topic_names, was.topic_regex) != (now.topic_names, now.topic_regex)
    return "what it subscribes to" if is_other else ""


def observe_regex(seen: Observation, record: RegexResolved) -> None:
    """A pattern has a result, or no member has it any more."""
    epochs = seen.epochs(CONSUMER)
    seen.has_news = True
    if record.topics is None:
        epochs.regexes.pop(record.regex, None)
        return
    if epochs.regexes.get(record.regex) != record.topics:
        epochs.news.regexes.append(record.regex)
    epochs.regexes[record.regex] = record.topics


def observe_topics(seen: Observation, record: SubscribedTopics) -> None:
    """The topics of the group are known by their names, as Kafka 3.7 to 4.0 write them."""
    seen.epochs(CONSUMER).topics = dict(record.topics)
    seen.has_news = True
