"""What another assignor would do with a group."""
