"""The `group-coordinator` command as a file, because spark-submit takes one.

docs/spark-cluster.md, "With spark-submit", has the whole line.
"""

from cli import main

if __name__ == "__main__":
    main()
