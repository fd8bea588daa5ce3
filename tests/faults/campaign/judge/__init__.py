"""The judge: it reads all topics and says what was lost, answered differently or expired wrongly.

Nothing here imports a package of this project, least of all `state`: the judge shares no code with what it
judges. docs/protocol.md describes the records that it reads.
"""
