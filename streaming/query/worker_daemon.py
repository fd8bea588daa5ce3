"""The daemon that forks Spark's Python workers, with the installed PySpark: `spark.python.daemon.module`.

Spark puts an archive of PySpark first on the path of its Python processes, and Python keeps no bytecode of
what it imports from an archive. So Spark's own daemon compiles PySpark at each start, which is 0.9 of its
1.5 s of processor time, and the first batch waits for it.
"""

import os
import sys
from importlib.util import find_spec
from pathlib import Path

_ARCHIVES = Path(os.environ["SPARK_HOME"], "python", "lib")

_path = sys.path
sys.path = [entry for entry in _path if Path(entry).parent != _ARCHIVES]
if find_spec("pyspark") is None:
    sys.path = _path

from pyspark import daemon  # noqa: E402 - it is found on the path from above

if __name__ == "__main__":
    daemon.manager()
