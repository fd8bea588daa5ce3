"""What the brokers' share coordinators keep of each partition."""

from pathlib import Path

from tests.harness.java_program import JavaProgram
from tests.shared.members import java_command


class States(JavaProgram):
    """Reads states as a principal with CLUSTER_ACTION, by Kafka's own classes (`states.java`)."""

    def __init__(self, classes: Path, folder: Path, client_settings: Path) -> None:
        super().__init__(java_command(classes, "ShareStates", folder / "states.log", str(client_settings)))

    def read(self, group: str, topic_id: str, partition: int) -> tuple[int, int] | None:
        """Return the state epoch and the start offset, None if the coordinator cannot say now. `topic_id` is
        Kafka's text of it.
        """
        words = self.answer(f"{group} {topic_id} {partition}").split()
        if not words or words[0] == "retry" or words[2] != "0":
            return None
        return int(words[0]), int(words[1])
