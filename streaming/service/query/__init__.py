"""The query and Spark's JVM, kept running."""
