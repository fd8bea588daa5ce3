"""Paths of the project's files outside the source tree."""

import os
import sys
from pathlib import Path


def cache_dir() -> Path:
    """Return the folder for files that can be downloaded again, such as jars.

    ``$SPARK_GROUP_COORDINATOR_CACHE``, else ``$XDG_CACHE_HOME/spark-group-coordinator``, else the same under
    ``~/.cache``. The environment is read at each call, so a test can change it. The folder need not exist.
    """
    if own := os.environ.get("SPARK_GROUP_COORDINATOR_CACHE"):
        return Path(own).expanduser()
    # The XDG specification says to ignore a relative path.
    xdg = Path(os.environ.get("XDG_CACHE_HOME", ""))
    base = xdg if xdg.is_absolute() else Path.home() / ".cache"
    return base / "spark-group-coordinator"


def spark_archive() -> Path:
    """Return the path of the archive of Spark's classes (`streaming.query.class_archive`), which may not
    exist.
    """
    return _share() / "spark-classes.jsa"


def broker_archive() -> Path:
    """Return the path of the archive of the embedded broker's classes, which may not exist."""
    return _share() / "broker-classes.jsa"


def _share() -> Path:
    return Path(sys.prefix) / "share" / "spark-group-coordinator"
