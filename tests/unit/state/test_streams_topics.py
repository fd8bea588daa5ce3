"""Properties of the numbers of any topology. The scenario `streams_topics` has the rows."""

from hypothesis import given
from hypothesis import strategies as st

from assignors.kafka.sticky_tasks import SubtopologyTasks
from kafka_why.contract.kafka.streams_responses import (
    KeyValue,
    StatusCode,
    StreamsTopicInfo,
    StreamsTopology,
    Subtopology,
)
from state.kafka.group import Topic
from state.kafka.streams_topics import (
    ConfiguredTopology,
    InvalidTopologyError,
    TopologyProblem,
    configure,
    required_topics,
)
from tests.harness.examples import examples


def internal(*names: str) -> list[StreamsTopicInfo]:
    return [StreamsTopicInfo(name=name) for name in names]


def look(counts: dict[str, int], *subtopologies: Subtopology) -> ConfiguredTopology | TopologyProblem:
    """Configure the topology. Topics without a number do not exist."""
    topology = StreamsTopology(1, list(subtopologies))
    known: dict[str, Topic | None] = dict.fromkeys(required_topics(topology))
    known |= {name: Topic(name.encode(), count) for name, count in counts.items()}
    return configure(topology, known)


def created(found: ConfiguredTopology | TopologyProblem) -> dict[str, int]:
    assert isinstance(found, TopologyProblem)
    assert found.status == StatusCode.MISSING_INTERNAL_TOPICS
    return {topic.name: topic.partitions for topic in found.create}


def tasks(found: ConfiguredTopology | TopologyProblem) -> dict[str, SubtopologyTasks]:
    assert isinstance(found, ConfiguredTopology)
    return found.tasks


def test_kst13_replication_factor_and_configs_are_those_of_the_client() -> None:
    compacted = [KeyValue("cleanup.policy", "compact")]
    topics = [
        StreamsTopicInfo(name="s1", replication_factor=3, topic_configs=compacted),
        StreamsTopicInfo(name="s2"),
    ]
    subtopology = Subtopology(subtopology_id="0", source_topics=["a"], state_changelog_topics=topics)
    found = look({"a": 2}, subtopology)
    assert isinstance(found, TopologyProblem)
    assert [(topic.replication_factor, topic.topic_configs) for topic in found.create] == [
        (3, compacted),
        (-1, []),
    ]


@st.composite
def topologies(draw: st.DrawFn) -> tuple[list[Subtopology], dict[str, int]]:
    """Draw a topology in which each subtopology writes a topic that later ones may read."""
    sources = {f"a{number}": draw(st.integers(1, 6)) for number in range(3)}
    written: list[str] = []
    subtopologies: list[Subtopology] = []
    for number in range(draw(st.integers(0, 4))):
        read = draw(st.lists(st.sampled_from(sorted(sources)), min_size=1, unique=True))
        repartition = draw(st.lists(st.sampled_from(written), unique=True)) if written else []
        changelogs = [f"s{number}-{one}" for one in range(draw(st.integers(0, 2)))]
        written.append(f"r{number}")
        subtopologies.append(
            Subtopology(
                subtopology_id=draw(st.sampled_from("abcdefgh")) + str(number),
                source_topics=read,
                repartition_sink_topics=[f"r{number}"],
                repartition_source_topics=internal(*repartition),
                state_changelog_topics=internal(*changelogs),
            )
        )
    return subtopologies, sources


def in_rounds(topology: StreamsTopology, counts: dict[str, int]) -> dict[str, int]:
    """Return the numbers of the topics that are written, or those decided before a round without progress.
    This is Kafka's algorithm: each round visits all subtopologies.
    """
    decided: dict[str, int] = {}
    before = -1
    while len(decided) > before:
        before = len(decided)
        for one in sorted(topology.subtopologies, key=lambda one: one.subtopology_id):
            read = [*one.source_topics, *(topic.name for topic in one.repartition_source_topics)]
            known_counts = [both[name] for both in (counts, decided) for name in read if name in both]
            for sink in one.repartition_sink_topics:
                if known_counts and sink not in decided:
                    decided[sink] = max(known_counts)
    return decided


@st.composite
def tangled(draw: st.DrawFn) -> StreamsTopology:
    """Draw a topology whose subtopologies may write the same topics and read each other's in loops."""
    written = st.lists(st.sampled_from([f"r{n}" for n in range(5)]), max_size=3)
    return StreamsTopology(
        0,
        [
            Subtopology(
                subtopology_id=str(number),
                source_topics=draw(st.lists(st.sampled_from(("a1", "a2", "a3")), max_size=1)),
                repartition_sink_topics=draw(written),
                repartition_source_topics=internal(*draw(written)),
            )
            for number in range(draw(st.integers(1, 5)))
        ],
    )


@examples(200)
@given(tangled())
def test_kst7_numbers_are_those_of_kafkas_rounds(topology: StreamsTopology) -> None:
    counts = {"a1": 1, "a2": 2, "a3": 3}
    decided = in_rounds(topology, counts)
    needed = {
        name
        for one in topology.subtopologies
        for name in (
            *one.repartition_sink_topics,
            *(topic.name for topic in one.repartition_source_topics),
        )
    }
    has_reader_of_nothing = any(
        not one.source_topics and not one.repartition_source_topics for one in topology.subtopologies
    )
    try:
        found = look(counts, *topology.subtopologies)
    except InvalidTopologyError:
        assert needed - decided.keys() or has_reader_of_nothing
        return
    assert not needed - decided.keys()
    read = {topic.name for one in topology.subtopologies for topic in one.repartition_source_topics}
    if read:
        assert created(found) == {name: decided[name] for name in read}


@examples(100)
@given(topologies())
def test_topology_is_ready_once_its_internal_topics_are_created(
    given_: tuple[list[Subtopology], dict[str, int]],
) -> None:
    """A subtopology has as many tasks as its largest topic, whatever the order of the subtopologies."""
    subtopologies, counts = given_
    first = look(counts, *subtopologies)
    if isinstance(first, TopologyProblem):
        assert look(counts, *reversed(subtopologies)) == first
        counts = {**counts, **created(first)}
        first = look(counts, *subtopologies)
    for one in subtopologies:
        read = [*one.source_topics, *(topic.name for topic in one.repartition_source_topics)]
        size = max(counts[name] for name in read)
        assert tasks(first)[one.subtopology_id] == SubtopologyTasks(size, bool(one.state_changelog_topics))
        assert all(counts[topic.name] == size for topic in one.state_changelog_topics)
