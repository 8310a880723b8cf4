"""Runs `SharedCapacity` without Triton in a process that reads one command per line."""

import sys

from tandem.bls.admission import LoopUsage
from tandem.bls.triton.loops.shared_capacity import SharedCapacity


def say(*words):
    print(*words, flush=True)


def publish(loop, *numbers):
    with loop.exclusive_lock():
        loop.publish(LoopUsage(*map(int, numbers)))
    say("published")


def usage(loop):
    with loop.exclusive_lock():
        say("usage", *loop.usage())


def hold(loop):
    with loop.exclusive_lock():
        say("held")
        loop.publish(LoopUsage(*map(int, next(sys.stdin).split())))
    say("released")


def stop(loop, *request_ids):
    for request_id in request_ids:
        loop.stop(request_id)


def notify(loop):
    loop.notify()


def close(loop):
    loop.close()
    say("closed")


VERBS = {verb.__name__: verb for verb in (publish, usage, hold, stop, notify, close)}


def main():
    loop = SharedCapacity(sys.argv[1])
    loop.open(
        on_stop=lambda request_id: say("stop", request_id), on_release=lambda: say("notified")
    )
    say("ready")
    for line in sys.stdin:
        verb, *words = line.split()
        VERBS[verb](loop, *words)


if __name__ == "__main__":
    main()
