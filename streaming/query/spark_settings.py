"""The settings of Spark, with the reason for each that affects latency or correctness, and who may change it.

A local Spark is the JVM of this process. On a cluster, tasks run in executors on other machines
(docs/spark-cluster.md, "On a Spark cluster").
"""

import os
import re
import socket
from collections.abc import Mapping
from pathlib import Path
from urllib.parse import urlsplit

from embedded.jars import spark_archive, spark_jars
from embedded.java import QUICK_COMPILER
from streaming.query.storage import FILE_SYSTEM

DEFAULT_JAVA_OPTIONS = "spark.driver.defaultJavaOptions"
STATE_STORE = "spark.sql.streaming.stateStore"
CHECKPOINT_FILE_MANAGER = "spark.sql.streaming.checkpointFileManagerClass"
LOOPBACK = "127.0.0.1"
ANY_ADDRESS = ("0.0.0.0", "::")  # noqa: S104 - compared with, not listened at
DEFAULT_STATE_PARTITIONS = 1
STATE_PARTITIONS = "spark.sql.shuffle.partitions"
DRIVER_CLASS_PATH = "spark.driver.extraClassPath"
JARS = "spark.jars"
LOCAL_TASK_FAILURES = 2  # a task whose Python worker died runs once more before the query fails
CLUSTER_TASK_FAILURES = 4  # Spark's own: a lost executor costs each of its tasks one attempt
_DEFAULT_PORT = 7077
# Source: org.apache.spark.SparkMasterRegex, and the URLs of Kubernetes and YARN.
_MASTER = (
    r"local(\[(\d+|\*)(\s*,\s*\d+)?\])?|local-cluster\[\s*\d+\s*,\s*\d+\s*,\s*\d+\s*\]"
    r"|spark://[^\s,:]+:\d+(,[^\s,:]+:\d+)*|k8s://\S+|yarn"
)

# Settings that have an option, with that option.
WITH_AN_OPTION: Mapping[str, str] = {
    "spark.driver.host": "--driver-host",
    "spark.master": "--master",
    STATE_PARTITIONS: "--state-partitions",
    "spark.ui.enabled": "--ui-port",
    "spark.ui.port": "--ui-port",
}
# Settings that only the code may choose, with the effect of another value.
FIXED: Mapping[str, str] = {
    "spark.speculation": "a second attempt of a running task would write its answers again",
    "spark.submit.deployMode": "the coordinator is the driver, and runs where it is started",
    "spark.sql.ansi.enabled": "clock records would be parsed by other rules",
    "spark.sql.execution.arrow.maxRecordsPerBatch": "a large state would not fit into a batch of Arrow",
    "spark.sql.session.timeZone": "times would be read in another time zone",
    CHECKPOINT_FILE_MANAGER: "the file manager belongs to the checkpoint's path",
    "spark.sql.streaming.checkpointLocation": "the checkpoint is in the data folder",
    "spark.sql.streaming.statefulOperator.useStrictDistribution": "groups would be in another partition",
    f"{STATE_STORE}.checkpointFormatVersion": "the checkpoint could not be read",
    f"{STATE_STORE}.providerClass": "the checkpoint could not be read",
}
# Secrets that Spark hides in its UI, its REST API and its logs: settings and variables of these names, and in
# plans options of these names and these texts. Spark's own defaults lack the settings of Kafka's clients.
REDACTED_SETTINGS = "spark.redaction.regex"
REDACTED_OPTIONS = "spark.sql.redaction.options.regex"
REDACTED_TEXTS = "spark.sql.redaction.string.regex"
_REDACTED: Mapping[str, str] = {
    REDACTED_SETTINGS: r"(?i)secret|password|passphrase|token|credential|jaas|keystore|access[.]?key",
    REDACTED_OPTIONS: r"(?i)url|secret|password|token|^kafka\.(sasl|ssl)\.",
    REDACTED_TEXTS: (
        r"""(?s)[\w.]+LoginModule\s+\w+(\s+[\w.]+\s*=\s*("[^"\\]*(\\.[^"\\]*)*"|[^\s;]+))*\s*;?"""
        r"|-----BEGIN [A-Z ]+-----.*?-----END [A-Z ]+-----"
    ),
}
# The separators of settings whose given values are joined to ours.
_SEPARATORS = {DRIVER_CLASS_PATH: os.pathsep, JARS: ",", **dict.fromkeys(_REDACTED, "|")}


class SettingRefused(ValueError):
    """A given setting may only be chosen by the code. The message says why."""


def settings() -> dict[str, str]:
    """Return Spark's settings for the coordinator, with and without a cluster.

    The checkpoint pins the settings of the state at its first batch.
    """
    return {
        "spark.sql.session.timeZone": "UTC",
        # Each partition costs two passes of a Python worker a batch, even without rows. So use few, at most
        # one per core.
        STATE_PARTITIONS: str(DEFAULT_STATE_PARTITIONS),
        # Otherwise a task waits up to 3 s for the executor that has cached the partition's consumer.
        "spark.locality.wait": "0",
        "spark.speculation": "false",
        # For a checkpoint on a local disk (`streaming.query.storage`).
        CHECKPOINT_FILE_MANAGER: FILE_SYSTEM,
        # Clock records keep coming, so no timeout needs a batch without data.
        "spark.sql.streaming.noDataMicroBatches.enabled": "false",
        # Over TCP, small pieces to and from a Python worker wait for delayed acknowledgements.
        "spark.python.unix.domain.socket.enabled": "true",
        # The watermark is a literal of the plan, so with code generation every batch compiles new classes.
        "spark.sql.codegen.wholeStage": "false",
        "spark.sql.codegen.factoryMode": "NO_CODEGEN",
        "spark.sql.ui.explainMode": "simple",
        f"{STATE_STORE}.minDeltasForSnapshot": "200",
        f"{STATE_STORE}.providerClass": (
            "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
        ),
        f"{STATE_STORE}.rocksdb.changelogCheckpointing.enabled": "true",
        # Saves one read for each write. The UI then shows 0 as the number of state rows.
        f"{STATE_STORE}.rocksdb.trackTotalNumberOfRows": "false",
        "spark.sql.streaming.metricsEnabled": "true",
        # The UI's data is on the heap. A batch is a job and an execution with its plan, so the default, 1,000
        # of each, is some minutes of batches.
        "spark.ui.retainedJobs": "200",
        "spark.ui.retainedStages": "200",
        "spark.sql.ui.retainedExecutions": "200",
        "spark.ui.showConsoleProgress": "false",
        # Users of the UI may not end the query's jobs.
        "spark.ui.killEnabled": "false",
        **_REDACTED,
    }


def jar_settings(master: str | None) -> dict[str, str]:
    """Return the settings that give the jars to the driver, and to executors if there are any."""
    jars = spark_jars()
    # The driver has its jars on the class path. With spark.jars, a class loader of Spark's would load them,
    # and the archive of classes has no classes of that loader. spark.jars.packages would also put the jars on
    # every Python worker's path.
    driver = {DRIVER_CLASS_PATH: os.pathsep.join(str(jar) for jar in jars)}
    return driver if is_local(master) else driver | {JARS: ",".join(jar.as_uri() for jar in jars)}


def local_settings() -> dict[str, str]:
    """Return Spark's settings for tasks that run in the driver's JVM."""
    return {
        # Loopback only, because only this machine uses the driver and its block manager. These settings do
        # not affect the UI, see `streaming.query.session`.
        "spark.driver.host": LOOPBACK,
        "spark.driver.bindAddress": LOOPBACK,
    }


def cluster_settings(master: str, driver_host: str | None) -> dict[str, str]:
    """Return Spark's settings for tasks that run in executors, which reach the driver at `driver_host`.
    Raises SettingRefused.

    If `driver_host` is None, executors use the address from which this machine reaches the master.
    """
    host = driver_host or find_driver_host(master)
    return {
        "spark.driver.host": host,
        # The name of a Kubernetes service is not an address of the driver's own machine.
        "spark.driver.bindAddress": host if _is_own(host) else ANY_ADDRESS[0],
        # A task runs again on any executor. `spark.excludeOnFailure` stays off: a batch with its own fault
        # would fail on each executor, and for an hour Spark would use none of them.
        "spark.task.maxFailures": str(CLUSTER_TASK_FAILURES),
        # A batch waits this long for an executor whose machine is cut off. Spark's defaults are 120 s, and a
        # check each 60 s.
        "spark.network.timeout": "30s",
        "spark.network.timeoutInterval": "5s",
        "spark.executor.heartbeatInterval": "5s",
    }


def java_settings() -> dict[str, str]:
    """Return the options of the driver's JVM, with the archive of Spark's classes if it exists."""
    # The optimizing compiler would never finish, because planning a batch runs much code, but little of it
    # often (docs/decisions/0014-the-fixed-cost-of-a-batch.md).
    options = [QUICK_COMPILER]
    # A JVM ignores an archive of other classes or of another Java.
    if (archive := spark_archive()).exists():
        options.append(f'"-XX:SharedArchiveFile={archive}"')
    return {DEFAULT_JAVA_OPTIONS: " ".join(options)}


def merged(ours: Mapping[str, str], given: Mapping[str, str]) -> dict[str, str]:
    """Return our settings, overridden by the given ones. Lists such as jars are joined."""
    result = dict(ours)
    for name, value in given.items():
        separator = _SEPARATORS.get(name)
        result[name] = separator.join(filter(None, (ours.get(name), value))) if separator else value
    return result


def check_given(given: Mapping[str, str]) -> None:
    """Raise SettingRefused if a setting may not be given."""
    for name in given:
        if not name.startswith("spark."):
            raise SettingRefused(f"{name} is not a setting of Spark: its name does not begin with 'spark.'")
        if name in WITH_AN_OPTION:
            raise SettingRefused(f"{name} is given by {WITH_AN_OPTION[name]}")
        if name in FIXED:
            raise SettingRefused(f"{name} cannot be changed: {FIXED[name]}")


def check_master(master: str) -> None:
    """Raise SettingRefused unless Spark accepts this as a master."""
    if not re.fullmatch(_MASTER, master):
        raise SettingRefused(
            f"{master!r} is not a master of Spark: local[N], spark://HOST:PORT, k8s://https://HOST:PORT or "
            "yarn"
        )


def is_local(master: str | None) -> bool:
    """Return True if tasks run in the driver's JVM. `master` is None if none was given."""
    return master is None or re.fullmatch(r"local(\[.*\])?", master) is not None


def find_driver_host(master: str) -> str:
    """Return the address of this machine from which it reaches the master. Raises SettingRefused."""
    if master.startswith("local"):
        return LOOPBACK
    for host, port in hosts_of(master):
        try:
            for family, kind, _, _, address in socket.getaddrinfo(host, port, type=socket.SOCK_DGRAM):
                # Nothing is sent: the system chooses the address of a datagram socket when it is connected.
                with socket.socket(family, kind) as datagram_socket:
                    datagram_socket.connect(address)
                    return str(datagram_socket.getsockname()[0])
        except OSError:
            continue
    raise SettingRefused(
        f"the address at which executors of {master} reach this machine is not known: no route to the master "
        "was found. Give it by --driver-host"
    )


def hosts_of(master: str) -> list[tuple[str, int]]:
    """Return the addresses in a master's URL: `spark://a:7077,b:7077`, `k8s://https://host:6443`."""
    _, separator, rest = master.partition("://")
    parts = rest.split(",") if separator else []
    urls = [urlsplit(part if "://" in part else f"//{part}") for part in parts]
    return [(url.hostname, url.port or _DEFAULT_PORT) for url in urls if url.hostname]


def _is_own(host: str) -> bool:
    """Return True if this machine can listen at the host."""
    try:
        for family, kind, _, _, address in socket.getaddrinfo(host, 0, type=socket.SOCK_STREAM):
            with socket.socket(family, kind) as listener:
                listener.bind(address)
                return True
    except OSError:
        pass
    return False


def local_dir(configured: str | None) -> Path:
    """Return the folder of Spark's temporary files, with its state stores. `configured` is
    `spark.local.dir`.
    """
    folders = os.environ.get("SPARK_LOCAL_DIRS") or configured or _JAVA_TMPDIR
    return Path(folders.split(",")[0])


_JAVA_TMPDIR = "/tmp"  # noqa: S108 - what Spark takes without a setting
