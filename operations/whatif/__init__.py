"""What-if: a group's recorded clients against the core with other settings, in a closed loop."""
