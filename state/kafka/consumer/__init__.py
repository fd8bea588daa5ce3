"""The rules of the consumer protocol (KIP-848), and of classic members in a group of that protocol. The
client of a classic member uses the classic protocol.
"""
