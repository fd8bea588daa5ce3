"""The pure core: one consumer group's life as a function of its log.

Nothing here reads a clock, draws a random number, touches a file or a socket, or knows Spark.
`state.kafka.step.step` is the one entry for one event; `state.timeline.Timeline` runs the rows of a log
through it in time order.
"""
