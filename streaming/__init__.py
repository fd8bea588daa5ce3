"""The Spark job: `query` is the streaming query, `service` keeps it running."""
