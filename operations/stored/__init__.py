"""The state of a checkpoint for people and for SQL: its groups as rows, as tables, and compared."""
