"""A loop without Triton: `Siblings` in a process of its own, which does what lines tell it."""

import sys

from tandem.bls.other_loops import Decision, LoopUsage, Way
from tandem.bls.triton.siblings import Siblings

now = 0  # seconds, for all that a loop knows


def say(*words):
    print(*words, flush=True)


def decide(loop, way, load, allowed, on_trial):
    decision = Decision(bool(int(allowed)), bool(int(on_trial)))
    loop.decisions(Way[way]).tell(int(load), decision)
    loop.decisions(Way[way]).counted()
    say("decided")


def at(loop, seconds):
    global now  # noqa: PLW0603
    now = int(seconds)
    say("at", now)


def follow(loop, way, load):
    say("follow", loop.decisions(Way[way]).to_follow(int(load)))


def elsewhere(loop):
    say("elsewhere", loop.decisions(Way.DRAFTS).num_elsewhere())


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


VERBS = {
    verb.__name__: verb
    for verb in (decide, at, follow, elsewhere, note, usage, hold, stop, call, close)
}


def main():
    loop = Siblings(sys.argv[1], clock=lambda: now * 10**9)
    loop.open(stop=lambda request_id: say("stop", request_id), look=lambda: say("look"))
    say("ready")
    for line in sys.stdin:
        verb, *words = line.split()
        VERBS[verb](loop, *words)


if __name__ == "__main__":
    main()
