"""A fault campaign on share groups: unmodified share consumers use three secured brokers through the gateway,
and a judge checks what they acknowledged.
"""
