"""`python -m bench`: how fast the coordinator is, beside the least any Spark query can do and Kafka's own."""
