"""The assignment of a group under another assignor."""
