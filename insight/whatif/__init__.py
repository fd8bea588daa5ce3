"""What-if: a group's assignment with another assignor, one member less or more, without consumers."""
