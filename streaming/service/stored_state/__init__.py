"""The state in a checkpoint, read, copied, moved and taken back."""
