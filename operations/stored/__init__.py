"""The coordinator's state in a checkpoint, for people and for SQL: its groups as rows and as tables."""
