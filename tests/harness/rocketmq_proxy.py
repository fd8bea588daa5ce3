"""RocketMQ's Proxy, and its gRPC clients."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from embedded.jars import class_path, jar_paths
from embedded.java import QUICK_COMPILER, ChildJvm, find_java
from tests.harness.certificates import Authority
from tests.harness.java_program import ReportingProgram
from tests.harness.java_tools import classpath_options, compiled
from tests.harness.ports import free_port
from tests.harness.waiting import wait_until

SOURCE = Path(__file__).with_name("rocketmq_grpc.java")
_LOGBACK = """\
<configuration>
  <appender name="console" class="ch.qos.logback.core.ConsoleAppender">
    <encoder><pattern>%d %p %logger{0}: %m%n%ex</pattern></encoder>
  </appender>
  <root level="WARN"><appender-ref ref="console"/></root>
</configuration>
"""
_JVM_OPTIONS = (QUICK_COMPILER, "-XX:+UseSerialGC", "-Xmx256m")


@contextmanager
def rocketmq_proxy(name_server: str, folder: Path) -> Iterator[str]:
    """Run a Proxy in cluster mode, and yield its address for gRPC clients."""
    issued = Authority(folder).issue("proxy")
    port = free_port()
    settings = {
        "rocketMQClusterName": "DefaultCluster",
        "namesrvAddr": name_server,
        "grpcServerPort": port,
        "remotingListenPort": free_port(),
        # Otherwise each start generates a certificate, whose RSA key takes seconds.
        "tlsTestModeEnable": False,
        "tlsCertPath": str(issued.chain),
        "tlsKeyPath": str(issued.key),
    }
    (folder / "proxy.json").write_text(json.dumps(settings))
    (folder / "logback.xml").write_text(_LOGBACK)
    options = (
        f"-Duser.home={folder}",
        "-Drocketmq.home.dir=.",
        "-Drmq.logback.configurationFile=logback.xml",
    )
    main_class = "org.apache.rocketmq.proxy.ProxyStartup"
    command = [str(find_java()), *_JVM_OPTIONS, *options, "-Dtls.server.mode=disabled"]
    command += ["-cp", class_path("rocketmq_proxy"), main_class, "-pm", "cluster", "-pc", "proxy.json"]
    log = folder / "proxy.log"
    log.touch()
    proxy = ChildJvm(folder, log)
    proxy.mark_log()
    try:
        assert proxy.launch(command, grace_s=1.0)
        wait_until(lambda: "startup successfully" in proxy.log_text(), "the Proxy", 120.0)
        yield f"127.0.0.1:{port}"
    finally:
        proxy.kill()


class GrpcClients(ReportingProgram):
    """A push consumer and a producer."""

    def __init__(self, proxy: str, topic: str, group: str, folder: Path) -> None:
        self.is_ready = False
        self.received: list[str] = []
        paths = jar_paths("rocketmq_grpc")
        classes = compiled([SOURCE], classpath_options(paths))
        options = [*_JVM_OPTIONS, f"-Duser.home={folder}", *classpath_options([classes, *paths])]
        super().__init__([str(find_java()), *options, "RocketMqGrpc", proxy, topic, group], None, folder)

    def take(self, line: str) -> None:
        if line == "ready":
            self.is_ready = True
        else:
            self.received.append(line)

    def note_end(self) -> None:
        self.is_ready = False
