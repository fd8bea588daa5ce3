"""`python -m bench`: how fast the coordinator is, side by side with the least any Spark query can do."""
