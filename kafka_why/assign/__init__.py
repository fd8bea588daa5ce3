"""A group's assignment with another assignor, one member less or more, without consumers."""
