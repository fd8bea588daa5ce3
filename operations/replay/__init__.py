"""What happened to groups, replayed: recordings of their log, the core on it without Spark, the verdict."""
