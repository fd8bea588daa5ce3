"""`python -m bench`: the coordinator's speed, compared with a minimal Spark query and Kafka's own."""
