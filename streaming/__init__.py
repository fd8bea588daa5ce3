"""The Spark job: `query` is what Spark runs, `service` keeps it running."""
