"""The programs of the groups' members. Each is one member in a process of its own, which can be killed.

A program is started with `--servers`, `--group`, `--client-id`, `--topics` (with commas), perhaps
`--instance-id`, and `--setting NAME=VALUE`, with the names of its library. Lines of its standard input are
`subscribe TOPICS`, `commit` and `leave`; it leaves when its input ends. Lines of its standard output are
`MILLISECONDS EVENT WORDS`, with the time since the epoch. The events are `came` and `went` with partitions as
TOPIC:NUMBER, as the library's listener was told them, `generation` with the number, `tasks` with all tasks as
active:0_0 or standby:0_0, `committed`, and `ended` with the error, if one ended the member.
"""
