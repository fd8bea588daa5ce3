"""The contract between a coordinator and its readers: the records that docs/protocol.md describes."""
