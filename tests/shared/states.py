"""What the brokers' share coordinators keep of each partition."""

import subprocess
from pathlib import Path

from tests.shared.members import java_command


class States:
    """Reads states as a principal with CLUSTER_ACTION, by Kafka's own classes (`states.java`)."""

    def __init__(self, classes: Path, folder: Path, client_settings: Path) -> None:
        self._jvm = subprocess.Popen(
            java_command(classes, "ShareStates", folder / "states.log", str(client_settings)),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            bufsize=1,
        )

    def read(self, group: str, topic_id: str, partition: int) -> tuple[int, int] | None:
        """The state epoch and the start offset, None if the coordinator cannot say now. `topic_id` is Kafka's
        text of it.
        """
        assert self._jvm.stdin is not None
        assert self._jvm.stdout is not None
        self._jvm.stdin.write(f"{group} {topic_id} {partition}\n")
        words = self._jvm.stdout.readline().split()
        if not words or words[0] == "retry" or words[2] != "0":
            return None
        return int(words[0]), int(words[1])

    def close(self) -> None:
        assert self._jvm.stdin is not None
        assert self._jvm.stdout is not None
        self._jvm.stdin.close()
        self._jvm.stdout.close()
        self._jvm.wait()
