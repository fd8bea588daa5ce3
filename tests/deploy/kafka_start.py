"""Starts a broker in a container as Kafka's own image does: its settings are variables named KAFKA_*."""

import os
import subprocess
from pathlib import Path

SETTINGS = Path("/tmp/server.properties")
JAVA = ("java", "-Xmx384m", "-XX:+UseSerialGC", "-cp", "/opt/kafka/libs/*")


def main() -> None:
    settings = {
        name.removeprefix("KAFKA_").lower().replace("_", "."): value
        for name, value in os.environ.items()
        if name.startswith("KAFKA_")
    }
    SETTINGS.write_text("".join(f"{name}={value}\n" for name, value in settings.items()))
    # As Kafka's image, which has one id in all containers.
    words = ("--cluster-id", "5L6g3nShT-eMCtK--X86sw", "--ignore-formatted", "--config", str(SETTINGS))
    subprocess.run([*JAVA, "kafka.tools.StorageTool", "format", *words], check=True)
    os.execvp(JAVA[0], [*JAVA, "kafka.Kafka", str(SETTINGS)])


if __name__ == "__main__":
    main()
