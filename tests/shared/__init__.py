"""A campaign of faults on share groups: unmodified share consumers go through the gateway to three secured
brokers, and a judge looks at what they acknowledged.
"""
