"""Which turns of a measurement count: a core of a shared host runs at two speeds, and a loop of plain
Python before and after a turn tells which one it had. For calibrate_dispatch.py."""
import os
import time

SLOW = 1.12  # times the core's own speed: by plain Python, neighbours make it 1.6
PATIENCE_S = 60  # for slow turns, in all


def quantile(samples, q):
    return sorted(samples)[min(len(samples) - 1, int(q * len(samples)))]


def middle(samples):
    return quantile(samples, 0.5)


class Core:
    """The core of both sides, and the turns that count: those at its own speed."""

    def __init__(self):
        cores = sorted(os.sched_getaffinity(0))
        speeds = []
        for core in cores:
            os.sched_setaffinity(0, {core})
            speeds.append((self.loop(100), core))
        self.own, self.number = min(speeds)
        os.sched_setaffinity(0, {self.number})
        self.turns = self.slow = self.kept_slow = 0
        self.lost_s = 0.0

    @staticmethod
    def loop(count):
        samples = []
        for _ in range(count):
            begin = time.perf_counter_ns()
            total = 0
            for i in range(1000):
                total += i * i
            samples.append(time.perf_counter_ns() - begin)
        return middle(samples)

    def turn(self, measure):
        while True:
            begin = time.perf_counter()
            before = self.loop(9)
            result = measure()
            self.turns += 1
            if max(before, self.loop(9)) <= SLOW * self.own:
                return result
            self.slow += 1
            if self.lost_s > PATIENCE_S:
                self.kept_slow += 1  # the document says so
                return result
            self.lost_s += time.perf_counter() - begin
