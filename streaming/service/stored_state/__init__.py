"""The state in a checkpoint: reading, copying, moving and rolling it back."""
