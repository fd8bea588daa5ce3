"""The shell round the pure core: Spark, Kafka, files, the clock and the command line."""
