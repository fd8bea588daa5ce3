"""Some groups of a recording, as a recording of these groups alone."""

from collections.abc import Iterator

from msgspec.structs import replace

from checkpoints.export_file import ExportedGroup
from operations.replay.collect import Collector, TopicRecord
from operations.replay.recording import (
    Answer,
    Event,
    Header,
    Letter,
    LogClock,
    LogLine,
    OutputLine,
    Recording,
    View,
)
from operations.replay.topic_contents import group_named_in, letter_key


class Selected:
    """The part of a recording that concerns these groups, by the rules by which `record` selects."""

    def __init__(self, recording: Recording, groups: set[str]) -> None:
        self._recording = recording
        self.header: Header = replace(recording.header, groups=sorted(groups))
        self._collector = Collector(self.header)
        self._has_read_log = False

    def states(self) -> Iterator[ExportedGroup]:
        return (state for state in self._recording.states() if self.header.wants(state.group_id))

    def log(self) -> Iterator[LogLine]:
        topic = self.header.identity.requests_topic
        for line in self._recording.log():
            if isinstance(line, LogClock) or self._collector.takes(line.message(topic)):
                yield line

    def outputs(self) -> Iterator[OutputLine]:
        if not self._has_read_log:
            for _ in self.log():  # it shows which answers belong
                pass
            self._has_read_log = True
        for line in self._recording.outputs():
            yield from self._collector.outputs([self._record(line)])

    def _record(self, line: OutputLine) -> TopicRecord:
        """The record of a line, as far as the collector looks at it."""
        layout = self.header.layout
        value = None if line.value is None else line.value.get()
        topic, key, is_early = layout.responses_topic, b"", False
        match line:
            case Answer(is_early=is_early):
                pass
            case Event():
                topic, key = layout.events_topic, group_named_in(value or b"").encode()
            case Letter():
                topic, key = layout.dead_letters_topic, letter_key(value or b"")
            case View(group_id=group_id):
                topic, key = layout.groups_topic, group_id.encode()
        return TopicRecord(topic, line.partition, line.offset, line.at_ms, key, value, is_early)
