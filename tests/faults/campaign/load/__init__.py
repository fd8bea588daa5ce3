"""The load: groups of every protocol, whose members send a few requests a second each."""
