"""The pure core: the life of a consumer group as a function of its log.

Nothing here reads a clock, draws a random number, touches a file or a socket, or imports Spark.
`state.dispatch.step` applies one event to one group. `state.timeline.Timeline` applies the rows of a log in
time order.
"""
