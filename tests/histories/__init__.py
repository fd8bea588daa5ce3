"""What each version of the state wrote, recorded by that version's own code. See docs/tests.md."""
