"""Runs `SharedCapacity` without Triton in a process that reads one command per line."""

import sys

from tandem.bls.admission.other_loops import LoopUsage
from tandem.bls.triton.loops.shared_capacity import SharedCapacity


def say(*words):
    print(*words, flush=True)


def note(loop, *numbers):
    with loop.exclusively():
        loop.note(LoopUsage(*map(int, numbers)))
    say("noted")


def usage(loop):
    with loop.exclusively():
        say("usage", *loop.usage())


def hold(loop):
    with loop.exclusively():
        say("held")
        loop.note(LoopUsage(*map(int, next(sys.stdin).split())))
    say("released")


def stop(loop, *request_ids):
    for request_id in request_ids:
        loop.stop(request_id)


def call(loop):
    loop.call()


def close(loop):
    loop.close()
    say("closed")


VERBS = {verb.__name__: verb for verb in (note, usage, hold, stop, call, close)}


def main():
    loop = SharedCapacity(sys.argv[1])
    loop.open(stop=lambda request_id: say("stop", request_id), look=lambda: say("look"))
    say("ready")
    for line in sys.stdin:
        verb, *words = line.split()
        VERBS[verb](loop, *words)


if __name__ == "__main__":
    main()
