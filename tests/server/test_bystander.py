"""Which pauses of a good client are its server's, and which the machine's."""

from bystander import Fare


def test_a_pause_that_the_twin_had_too_is_the_machines():
    fare, twin = Fare(), Fare()
    fare.heard(10.0, 11.2)
    fare.heard(20.0, 20.6)
    fare.heard(30.0, 30.4)
    twin.heard(9.9, 11.0)
    assert fare.unexcused(0.5, twin) == [0.6]
    assert fare.unexcused(0.5, Fare()) == [1.2, 0.6]
