"""RocketMQ's remoting protocol: frames, bodies, routes, and a client."""
