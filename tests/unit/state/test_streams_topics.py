"""The topics that a topology requires, timeline SL10, and properties of any topology."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from assignors.kafka.sticky_tasks import SubtopologyTasks
from kafka_why.contract.kafka.streams_responses import (
    CopartitionGroup,
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
    difference,
    malformed_topology,
    required_topics,
)
from tests.harness.examples import examples


def known(names: dict[str, int], *missing: str) -> dict[str, Topic | None]:
    """Return these topics with their numbers of partitions, and others that do not exist."""
    return {**{name: Topic(name.encode(), count) for name, count in names.items()}, **dict.fromkeys(missing)}


def internal(*texts: str) -> list[StreamsTopicInfo]:
    """Return internal topics: `r1`, or `r1:7` with a fixed number of partitions."""
    return [
        StreamsTopicInfo(name=name, partitions=int(count or 0))
        for name, _, count in (text.partition(":") for text in texts)
    ]


def reading(*sources: str, changelogs: str = "", sinks: str = "", copartitioned: bool = False) -> Subtopology:
    """Return subtopology 0."""
    return Subtopology(
        subtopology_id="0",
        source_topics=list(sources),
        repartition_sink_topics=sinks.split(),
        state_changelog_topics=internal(*changelogs.split()),
        copartition_groups=[CopartitionGroup(list(range(len(sources))))] if copartitioned else [],
    )


def joining(*repartition: str, sources: str = "", changelogs: str = "s") -> Subtopology:
    """Return subtopology 9, which joins repartition topics with topics."""
    names = sources.split()
    group = CopartitionGroup(list(range(len(names))), [], list(range(len(repartition))))
    return Subtopology(
        subtopology_id="9",
        source_topics=names,
        repartition_source_topics=internal(*repartition),
        state_changelog_topics=internal(*changelogs.split()),
        copartition_groups=[group],
    )


def writing(id_: str, source: str, sink: str) -> Subtopology:
    return Subtopology(subtopology_id=id_, source_topics=[source], repartition_sink_topics=[sink])


def look(
    names: dict[str, int], *subtopologies: Subtopology, complete: bool = True
) -> ConfiguredTopology | TopologyProblem:
    """Configure the topology. Topics without a number do not exist if the sender knew all topics."""
    topology = StreamsTopology(1, list(subtopologies))
    missing = required_topics(topology) - names.keys() if complete else ()
    return configure(topology, known(names, *missing))


def created(found: ConfiguredTopology | TopologyProblem) -> dict[str, int]:
    assert isinstance(found, TopologyProblem)
    assert found.status == StatusCode.MISSING_INTERNAL_TOPICS
    return {topic.name: topic.partitions for topic in found.create}


def problem(found: ConfiguredTopology | TopologyProblem) -> tuple[StatusCode, str]:
    assert isinstance(found, TopologyProblem)
    assert found.create == []
    return found.status, found.detail


def tasks(found: ConfiguredTopology | TopologyProblem) -> dict[str, SubtopologyTasks]:
    assert isinstance(found, ConfiguredTopology)
    return found.tasks


def test_kst6_missing_source_topics_are_named_in_order() -> None:
    assert problem(look({"b": 1}, reading("d", "b", "e", "a", "f", changelogs="s"))) == (
        StatusCode.MISSING_SOURCE_TOPICS,
        "Source topics are missing: a, d, e and 1 more topic.",
    )


def test_kst13_missing_internal_topics_are_to_be_created() -> None:
    subtopologies = reading("a", sinks="r1"), joining("r1", sources="b")
    assert created(look({"a": 3, "b": 3}, *subtopologies)) == {"r1": 3, "s": 3}
    found = look({"a": 2}, reading("a", changelogs="s5 s1 s3 s2 s4"))
    assert isinstance(found, TopologyProblem)
    assert found.detail == "Internal topics are missing: s1, s2, s3 and 2 more topics."
    assert found.topics == ["s1", "s2", "s3", "s4", "s5"]


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


def test_ksq5_internal_topics_of_which_nothing_is_known_are_not_created() -> None:
    found = look({"a": 3}, reading("a", changelogs="s"), complete=False)
    assert created(found) == {}
    assert isinstance(found, TopologyProblem)
    assert found.topics == ["s"]


def test_kst9_text_names_a_topic_of_each_number_first() -> None:
    counts = {f"t{index}": 3 for index in range(5)} | {"u": 4}
    assert problem(look(counts, reading(*counts, copartitioned=True))) == (
        StatusCode.INCORRECTLY_PARTITIONED_TOPICS,
        "Copartitioned topics have different numbers of partitions: t0 has 3 partitions, u has 4 partitions,"
        " t1 has 3 partitions and 3 more topics.",
    )


def test_kst9_copartitioned_sources_need_equal_numbers() -> None:
    counts = {"a": 3, "b": 4}
    assert problem(look(counts, reading("a", "b", copartitioned=True))) == (
        StatusCode.INCORRECTLY_PARTITIONED_TOPICS,
        "Copartitioned topics have different numbers of partitions: a has 3 partitions, b has 4 partitions.",
    )
    assert tasks(look(counts, reading("a", "b"))) == {"0": SubtopologyTasks(4, False)}


def test_kst9_repartition_topic_takes_the_number_of_its_partner() -> None:
    subtopologies = reading("a", sinks="r1"), joining("r1", sources="b")
    assert created(look({"a": 3, "b": 4}, *subtopologies)) == {"r1": 4, "s": 4}
    status, _ = problem(look({"a": 3, "b": 4}, subtopologies[0], joining("r1:7", sources="b")))
    assert status == StatusCode.INCORRECTLY_PARTITIONED_TOPICS


def test_kst9_repartition_topics_alone_take_the_largest_or_the_fixed_number() -> None:
    counts = {"a": 3, "b": 4}
    first, second = writing("0", "a", "r1"), writing("1", "b", "r2")
    assert created(look(counts, first, second, joining("r1", "r2"))) == {"r1": 4, "r2": 4, "s": 4}
    assert created(look(counts, first, second, joining("r1:5", "r2"))) == {"r1": 5, "r2": 5, "s": 5}
    status, _ = problem(look(counts, first, second, joining("r1:5", "r2:6")))
    assert status == StatusCode.INCORRECTLY_PARTITIONED_TOPICS


def test_kst8_empty_copartition_group_is_ignored() -> None:
    nothing = Subtopology(subtopology_id="8", source_topics=["a"], copartition_groups=[CopartitionGroup()])
    first, second = writing("0", "a", "r1"), writing("1", "a", "r2")
    rest = [joining("r1:5", sources="b"), replace(joining("r2:6", sources="c"), subtopology_id="7")]
    found = look(
        {"a": 3, "b": 5, "c": 6},
        first,
        second,
        nothing,
        *(replace(one, state_changelog_topics=[]) for one in rest),
    )
    assert created(found) == {"r1": 5, "r2": 6}


def test_kst7_numbers_pass_through_chains_of_repartition_topics() -> None:
    chain = [
        Subtopology(
            subtopology_id=str(5 - number),
            repartition_source_topics=internal(f"r{number}"),
            repartition_sink_topics=[f"r{number + 1}"],
        )
        for number in range(1, 5)
    ]
    last = Subtopology(subtopology_id="0", repartition_source_topics=internal("r5"))
    assert created(look({"a": 3}, writing("9", "a", "r1"), *chain, last)) == {f"r{n}": 3 for n in range(1, 6)}


def test_kst7_loops_and_unwritten_topics_are_refused() -> None:
    loop = Subtopology(
        subtopology_id="0", repartition_source_topics=internal("r1"), repartition_sink_topics=["r1"]
    )
    with pytest.raises(InvalidTopologyError, match="loop: r1"):
        look({}, loop)
    with pytest.raises(InvalidTopologyError, match="writer: r1"):
        look({"b": 3}, joining("r1", sources="b"))


def test_kst10_subtopology_without_sources_is_refused() -> None:
    with pytest.raises(InvalidTopologyError, match="Subtopology 0 has no source topic"):
        look({}, reading(changelogs="s"))


def test_kst12_internal_topics_need_the_right_number() -> None:
    assert problem(look({"a": 3, "s": 2}, reading("a", changelogs="s"))) == (
        StatusCode.INCORRECTLY_PARTITIONED_TOPICS,
        "Internal topic s should have 3 partitions, but has 2.",
    )
    subtopologies = reading("a", sinks="r1"), joining("r1:5", changelogs="")
    assert problem(look({"a": 3, "r1": 4}, *subtopologies))[0] == StatusCode.INCORRECTLY_PARTITIONED_TOPICS


def test_kst11_configured_topology_has_all_numbers() -> None:
    found = look({"a": 3, "b": 3, "r1": 3, "s": 3}, joining("r1", sources="b"), reading("a", sinks="r1"))
    assert isinstance(found, ConfiguredTopology)
    assert found.tasks == {"0": SubtopologyTasks(3, False), "9": SubtopologyTasks(3, True)}
    assert [one.subtopology_id for one in found.subtopologies] == ["0", "9"]
    assert found.subtopologies[1].repartition_source_topics == internal("r1:3")
    assert found.subtopologies[1].state_changelog_topics == internal("s:3")


def test_kst14_topology_without_subtopologies_is_ready() -> None:
    assert tasks(look({})) == {}


def test_ksb14_malformed_topologies_are_found() -> None:
    twice = StreamsTopology(0, [reading("a"), reading("b")])
    wrong_index = Subtopology(subtopology_id="0", copartition_groups=[CopartitionGroup([], [], [5])])
    assert malformed_topology(StreamsTopology(-1)) == "The topology epoch is negative: -1."
    assert malformed_topology(twice) == "Subtopology 0 occurs twice."
    assert (
        malformed_topology(StreamsTopology(0, [wrong_index])) == "Subtopology 0 has no copartitioned topic 5."
    )
    assert malformed_topology(StreamsTopology(0, [reading("a", "b", copartitioned=True)])) is None


def test_kst3_difference_names_the_first_subtopology_and_list() -> None:
    first = StreamsTopology(1, [reading("a", "b", changelogs="s"), joining("r1:5")])
    assert difference(first, StreamsTopology(1, list(first.subtopologies))) is None
    assert difference(first, StreamsTopology(2, first.subtopologies)) == "topology epoch 2 instead of 1"
    assert difference(first, StreamsTopology(1, first.subtopologies[:1])) == "subtopology 9 is missing"
    assert difference(StreamsTopology(1, first.subtopologies[:1]), first) == "subtopology 9 is new"
    other = StreamsTopology(1, [reading("b", "a", changelogs="s"), joining("r1:5")])
    assert difference(first, other) == "subtopology 0 has other source topics"
    turned = StreamsTopology(1, first.subtopologies[::-1])
    assert difference(first, turned) == "the order of its subtopologies"


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


def test_kst7_numbers_of_one_round_are_known_in_the_next() -> None:
    first = Subtopology(
        subtopology_id="0",
        repartition_source_topics=internal("r1", "r2"),
        repartition_sink_topics=["r0"],
    )
    last = Subtopology(subtopology_id="9", repartition_source_topics=internal("r0"))
    found = look({"a": 1, "b": 3}, first, writing("1", "a", "r1"), writing("2", "b", "r2"), last)
    assert created(found) == {"r0": 3, "r1": 1, "r2": 3}


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
