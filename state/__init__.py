"""The pure core: the life of a consumer group as a function of its log. The log has the requests to the group
in the order of the requests topic.

Nothing here reads a clock, draws a random number, touches a file or a socket, or imports Spark.
`state.dispatch.step` applies one event to one group. `state.timeline.Timeline` applies the requests of a log,
and the deadlines between them, in time order.

Ids such as J1 or TM14 are rows of docs/rules.md and the other docs/rules-*.md: each row is one rule of a
group. Every answer and every history entry names the row that decided it.
"""
