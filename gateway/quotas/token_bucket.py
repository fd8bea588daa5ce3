"""The arithmetic of a quota. No clock of its own: the caller gives the time in seconds."""


class TokenBucket:
    """Kafka's token bucket (KIP-599): `rate` tokens a second, at most `burst`. It is full at the beginning.

    A request takes a token also where there is none. The number is negative then: a debt. While there is a
    debt, clients are throttled until it would be paid. The debt is at most `rate` tokens times
    `longest_s`, so no client is throttled for longer than `longest_s`. That is how Kafka bounds its request
    quota (ClientRequestQuotaManager), because a member that is silent for too long loses its session.
    """

    __slots__ = ("_at_s", "_burst", "_least", "_tokens", "rate")

    def __init__(self, rate: float, *, burst: float, longest_s: float, now_s: float) -> None:
        self.rate = rate
        self._burst = burst
        self._least = -rate * longest_s
        self._tokens = burst
        self._at_s = now_s

    def charge_exceeds(self, now_s: float) -> bool:
        """Take a token. Returns whether there was none: the client is to be throttled."""
        self._refill(now_s)
        self._tokens = max(self._tokens - 1, self._least)
        return self._tokens < 0

    def try_charge(self, now_s: float) -> bool:
        """Take a token if there is one. Returns whether there was."""
        self._refill(now_s)
        if self._tokens < 1:
            return False
        self._tokens -= 1
        return True

    def wait_s(self, now_s: float) -> float:
        """The seconds until there is a token, at most `longest_s`."""
        self._refill(now_s)
        return min(max((1 - self._tokens) / self.rate, 0.0), -self._least / self.rate)

    def throttle_s(self, now_s: float) -> float:
        """The seconds until the debt is paid. 0 without a debt."""
        self._refill(now_s)
        return max(-self._tokens / self.rate, 0.0)

    def is_full(self, now_s: float) -> bool:
        """Whether it is the same as a new one."""
        self._refill(now_s)
        return self._tokens >= self._burst

    def _refill(self, now_s: float) -> None:
        if now_s > self._at_s:
            self._tokens = min(self._burst, self._tokens + self.rate * (now_s - self._at_s))
            self._at_s = now_s
