"""Podman on this machine: images and containers of the tests, and stand-ins for the images of a registry.

No registry of images is asked. The base image of the coordinator's is used if it is there. Otherwise Debian's
own packages make one, and the set-up's jars make that of Kafka.
"""

import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

ROOT = Path(__file__).parents[2]
NAME = "localhost/group-coordinator-tests"
IMAGE = f"{NAME}/coordinator:latest"
KAFKA = f"{NAME}/kafka:latest"
PYTHON = f"{NAME}/python:bookworm"
NEEDED = ("podman", "debootstrap", "runc", "catatonit", "iptables")

BUILD_TIMEOUT_S = 900
TIMEOUT_S = 120
_CERTIFICATES = Path("/usr/local/share/ca-certificates")
# Debian's Python is one that pip may not install into, and it has no name without a version.
_STAND_IN = f"""
FROM {PYTHON}-packages
COPY certificates/ {_CERTIFICATES}/
RUN update-ca-certificates && ln --symbolic python3 /usr/bin/python && rm /usr/lib/python3*/EXTERNALLY-MANAGED
"""


class Podman:
    """Runs `podman` with its own settings in `folder`."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        settings = folder / "containers.conf"
        # What a container may open at most is what this process may. runc takes every version of cgroups.
        containers = f'default_ulimits = []\ninit_path = "{shutil.which("catatonit")}"'
        settings.write_text(f'[containers]\n{containers}\n[engine]\nruntime = "runc"\n')
        self.environment = {"CONTAINERS_CONF": str(settings)}
        self._running: list[str] = []
        self._noted: BaseException | None = None

    def __call__(self, *words: str, timeout_s: float = TIMEOUT_S) -> str:
        """Return the command's output. Raises CalledProcessError, whose notes have the reason."""
        done = self.tried(*words, timeout_s=timeout_s)
        if done.returncode != 0:
            error = subprocess.CalledProcessError(done.returncode, done.args)
            error.add_note(done.stdout + done.stderr)
            raise error
        return done.stdout

    def tried(self, *words: str, timeout_s: float = TIMEOUT_S) -> subprocess.CompletedProcess[str]:
        """Return the finished command, whatever its exit code."""
        return subprocess.run(
            ["podman", *words],
            env={**os.environ, **self.environment},
            cwd=ROOT,
            capture_output=True,
            text=True,
            check=False,
            timeout=timeout_s,
        )

    def has_image(self, name: str) -> bool:
        return self.tried("image", "exists", name).returncode == 0

    def is_healthy(self, container: str) -> bool:
        """Return True if the image's health check passes in the container."""
        return self.tried("healthcheck", "run", container).returncode == 0

    def succeeds_in(self, container: str, *words: str) -> bool:
        """Return True if a command in the container ends with exit code 0."""
        return self.tried("exec", container, *words).returncode == 0

    def build(self, dockerfile: Path, tag: str, context: Path, *options: str) -> None:
        """Build an image. What was built before is taken from Podman's cache."""
        self(
            *("build", "--network=host", "--format=docker", "--file", str(dockerfile), "--tag", tag),
            *(*options, str(context)),
            timeout_s=BUILD_TIMEOUT_S,
        )

    def base(self, wanted: str) -> str:
        """Return the name of the wanted base image, or of its stand-in, which is made once."""
        if self.has_image(f"docker.io/library/{wanted}"):
            return f"docker.io/library/{wanted}"
        if not self.has_image(PYTHON):
            self._make_stand_in()
        return PYTHON

    def _make_stand_in(self) -> None:
        with tempfile.TemporaryDirectory(dir=self._folder) as name:
            folder = Path(name)
            packages = "--include=ca-certificates,python3,python3-pip,python3-venv"
            root, archive = folder / "root", folder / "root.tar"
            _run("debootstrap", "--variant=minbase", packages, "bookworm", str(root))
            _run("tar", "--create", "--directory", str(root), "--file", str(archive), ".")
            self("import", str(archive), f"{PYTHON}-packages")
            (folder / "certificates").mkdir()
            for certificate in _CERTIFICATES.glob("*.crt"):
                shutil.copy(certificate, folder / "certificates")
            (folder / "Dockerfile").write_text(_STAND_IN)
            self.build(folder / "Dockerfile", PYTHON, folder)

    @contextmanager
    def container(self, *words: str) -> Iterator[str]:
        """Yield a container that runs in the background until the block ends. Yields its id."""
        container = self("run", "--detach", *words).strip()
        try:
            with self.noting_logs(container):
                yield container
        finally:
            self("rm", "--force", "--volumes", "--time", "10", container)

    @contextmanager
    def noting_logs(self, container: str) -> Iterator[None]:
        """Add the last lines of all containers of such blocks to an error in the block."""
        self._running.append(container)
        try:
            yield
        except BaseException as error:
            if error is not self._noted:
                self._note_logs(error)
            raise
        finally:
            self._running.remove(container)

    def _note_logs(self, error: BaseException) -> None:
        self._noted = error
        with suppress(subprocess.SubprocessError):
            error.add_note(self("ps", "--all", "--format", "{{.ID}} {{.Status}} {{.Command}}"))
            for container in self._running:
                done = self.tried("logs", "--timestamps", "--tail", "60", container)
                error.add_note(f"{container}:\n{done.stdout}{done.stderr}")


def _run(*words: str) -> None:
    done = subprocess.run(words, capture_output=True, text=True, check=False, timeout=BUILD_TIMEOUT_S)
    assert done.returncode == 0, done.stdout + done.stderr
