"""The time for which members' requests are held with an absent, a slow and an overloaded coordinator."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from unittest.mock import Mock

import pytest

from clients.pending import PendingRequest
from gateway.coordinator.backend import AdaptiveTimeout, HeldRequests

LEAST_S = 3.0
MOST_S = 25.0
NOTHING = Mock()


@dataclass(eq=False, kw_only=True)
class Held(PendingRequest):
    number: int
    is_answered: bool = False

    def is_wanted(self) -> bool:
        return not self.is_answered


class Gateway:
    """Held requests, and those that are given up. They are checked when `check_at_s` says so."""

    def __init__(self) -> None:
        self.held: HeldRequests[Held] = HeldRequests(
            AdaptiveTimeout(round(LEAST_S * 1000), round(MOST_S * 1000))
        )
        self.requests: list[Held] = []
        self.given_up: dict[int, float] = {}
        """By number: how long the request was held."""

    def send(self, now_s: float) -> Held:
        self.check(now_s)
        request = Held(NOTHING, now_s, 0, NOTHING, number=len(self.requests) + 1)
        self.requests.append(request)
        self.held.hold(request)
        return request

    def answer(self, requests: Sequence[Held], now_s: float) -> None:
        self.check(now_s)
        for request in requests:
            request.is_answered = True
        self.held.timeout.record(max(now_s - request.sent_at_s for request in requests), now_s)

    def check(self, now_s: float) -> None:
        """Let time pass until now."""
        while (at_s := self.held.check_at_s()) is not None and at_s <= now_s:
            for request in self.held.give_up(at_s):
                request.is_answered = True  # with an error
                self.given_up[request.number] = round(at_s - request.sent_at_s, 3)


def test_unanswered_request_times_out_although_others_are_answered() -> None:
    gateway = Gateway()
    lost = gateway.send(100.0)
    for number in range(1, 100):
        gateway.answer([gateway.send(100.0 + number / 10)], 100.05 + number / 10)
    assert gateway.given_up == {lost.number: LEAST_S}


def test_stopped_coordinator_is_noticed_despite_earlier_quick_answers() -> None:
    gateway = Gateway()
    for number in range(50):
        gateway.answer([gateway.send(100.0 + number / 10)], 100.1 + number / 10)
    silent = [gateway.send(105.0 + number / 10) for number in range(10)]
    gateway.check(200.0)
    assert gateway.given_up == dict.fromkeys((request.number for request in silent), LEAST_S)


def test_coordinator_timeout_grows_with_slow_answers() -> None:
    """This also holds for the only member, without other answers as evidence."""
    gateway = Gateway()
    late = gateway.send(100.0)
    gateway.answer([late], 104.0)
    assert gateway.given_up == {late.number: LEAST_S}, "the first answer tells"
    gateway.answer([gateway.send(105.0)], 113.0)
    assert list(gateway.given_up) == [late.number]


def test_coordinator_timeout_is_bounded_and_decays() -> None:
    timeout = AdaptiveTimeout(3_000, 25_000)
    bounds = []
    for took_s, now_s in ((0.4, 100.0), (2.0, 101.0), (60.0, 200.0), (0.4, 201.0), (0.4, 230.0)):
        timeout.record(took_s, now_s)
        bounds.append(timeout.current_s)
    assert bounds == [3.0, 6.0, 25.0, 25.0, 3.0]


@dataclass
class Overload:
    """Requests come at a rate, and later at another. The coordinator reads all that came into one batch.

    A batch takes `fixed_s`, and `each_s` for each request. Answers come at its end, or while it runs.
    """

    rates: Callable[[float], float]
    until_s: float
    fixed_s: float = 0.1
    each_s: float = 0.002
    answers_while_it_runs: bool = False

    def run(self, gateway: Gateway) -> float:
        """Return the time that the slowest answer took."""
        arrivals = list(self._arrivals())
        now_s, done, slowest_s = 100.0, 0, 0.0
        while done < len(arrivals):
            batch = [at_s for at_s in arrivals[done:] if at_s <= now_s]
            done += len(batch)
            end_s = now_s + self.fixed_s + self.each_s * len(batch)
            requests = [request for request in gateway.requests if not request.is_answered]
            parts = 20 if self.answers_while_it_runs and len(requests) > 20 else 1
            # Answers come in the order of the shards, not in the order of the requests.
            of_part = [requests[part::parts] for part in range(parts)]
            late = iter([at_s for at_s in arrivals[done:] if at_s <= end_s])
            waiting = next(late, None)
            for part, answered in enumerate(of_part, start=1):
                at_s = now_s + (end_s - now_s) * part / parts
                while waiting is not None and waiting <= at_s:
                    gateway.send(waiting)
                    waiting = next(late, None)
                if answered:
                    gateway.answer(answered, at_s)
                    slowest_s = max(slowest_s, *(at_s - request.sent_at_s for request in answered))
            now_s = end_s
        gateway.check(now_s + MOST_S)
        return slowest_s

    def _arrivals(self) -> Iterator[float]:
        at_s = 100.0
        while at_s < 100.0 + self.until_s:
            at_s += 1 / self.rates(at_s - 100.0)
            yield at_s


@pytest.mark.parametrize("answers_while_it_runs", [False, True])
@pytest.mark.parametrize("times", [1.2, 2.0, 2.5])
def test_overloaded_coordinator_causes_no_client_errors(times: float, answers_while_it_runs: bool) -> None:
    """10 s of more than the rate that is held, then half of it: no request is given up."""
    held_per_s = 500.0
    overload = Overload(
        lambda s: held_per_s / 2 if s < 5 or s >= 15 else times * held_per_s,
        until_s=40,
        answers_while_it_runs=answers_while_it_runs,
    )
    gateway = Gateway()
    slowest_s = overload.run(gateway)
    assert (times < 2) or slowest_s > LEAST_S, "it is an overload"
    assert gateway.given_up == {}
