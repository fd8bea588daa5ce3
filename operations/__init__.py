"""Commands for operators of this coordinator: change groups, replay logs, try settings, read states."""
