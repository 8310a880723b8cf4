"""A loop without Triton: `Siblings` in a process of its own, which does what lines tell it."""

import sys

from tandem.bls.other_loops import LoopUsage
from tandem.bls.triton.siblings import Siblings


def say(*words):
    print(*words, flush=True)


def main():
    loop = Siblings(sys.argv[1])
    loop.open(stop=lambda request_id: say("stop", request_id), look=lambda: say("look"))
    say("ready")
    for line in sys.stdin:
        verb, *words = line.split()
        if verb == "note":
            with loop.exclusively():
                loop.note(LoopUsage(*map(int, words)))
            say("noted")
        elif verb == "usage":
            with loop.exclusively():
                say("usage", *loop.usage())
        elif verb == "hold":
            with loop.exclusively():
                say("held")
                loop.note(LoopUsage(*map(int, next(sys.stdin).split())))
            say("released")
        elif verb == "stop":
            for word in words:
                loop.stop(word)
        elif verb == "call":
            loop.call()
        else:
            loop.close()
            say("closed")


if __name__ == "__main__":
    main()
