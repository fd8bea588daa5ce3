"""`python -m bench`: the coordinator's speed, beside a minimal Spark query and Kafka's own coordinator."""
