"""The coordinator's Python client, and adapters of this project's assignors for kafka-python's consumers."""
