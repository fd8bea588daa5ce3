"""Some groups of a recording, as a recording of these groups alone."""

from collections.abc import Iterator

from msgspec.structs import replace

from checkpoints.export_file import ExportedGroup
from operations.replay.collect import Collector
from operations.replay.recording import ClockLine, LogLine, OutputLine, Recording, RecordingHeader


class SelectedGroups:
    """The part of a recording that concerns these groups, by the rules by which `record` selects."""

    def __init__(self, recording: Recording, groups: set[str]) -> None:
        self._recording = recording
        self.header: RecordingHeader = replace(recording.header, groups=sorted(groups))
        self._collector = Collector(self.header)
        self._has_read_log = False

    def states(self) -> Iterator[ExportedGroup]:
        return (state for state in self._recording.states() if self.header.wants(state.group_id))

    def log(self) -> Iterator[LogLine]:
        topic = self.header.identity.requests_topic
        for line in self._recording.log():
            if isinstance(line, ClockLine) or self._collector.takes(line.message(topic)):
                yield line

    def outputs(self) -> Iterator[OutputLine]:
        if not self._has_read_log:
            for _ in self.log():  # it shows which answers belong
                pass
            self._has_read_log = True
        return filter(self._collector.includes, self._recording.outputs())
