"""Noise follows SplitMix64, is the same for a part of a row, and passes randomness tests."""

import numpy as np
import pytest
from scipy.special import kolmogorov

from tandem.engines import noise
from tandem.engines.noise import Purpose, draw, exponentials, exponentials_at, hash_key, uniform

KEYS = [(seed, position) for seed in range(40) for position in range(50)]


def test_the_bits_follow_splitmix64():
    published = [6457827717110365317, 3203168211198807973, 9817491932198370423]
    assert noise._bits(1234567, np.arange(3)).tolist() == published
    assert [noise.mix_bits(1234567 + n * noise.STEP) for n in (1, 2, 3)] == published


def are_uniform(numbers) -> bool:
    """Return whether the numbers pass a Kolmogorov-Smirnov test."""
    numbers, count = np.sort(numbers), len(numbers)
    distance = np.abs(numbers - (np.arange(count) + 0.5) / count).max() + 0.5 / count
    return kolmogorov(count**0.5 * distance) > 1e-4


@pytest.mark.parametrize("purpose", Purpose)
def test_noise_is_exponential_within_a_row_and_across_keys(purpose):
    row = exponentials(7, 11, purpose, 20_000)
    column = [exponentials(seed, at, purpose, 4)[3] for seed, at in KEYS]
    for draws in (row, column):
        assert are_uniform(np.exp(-np.array(draws)))
    assert are_uniform([uniform(seed, at, purpose) for seed, at in KEYS])


@pytest.mark.parametrize(
    "neighbour",
    [
        lambda seed, at, purpose: (seed + 1, at, purpose),
        lambda seed, at, purpose: (seed, at + 1, purpose),
        lambda seed, at, purpose: (seed, at, Purpose((purpose + 1) % 3)),
        lambda seed, at, purpose: (at, seed, purpose),
    ],
)
def test_noise_of_neighboring_keys_is_independent(neighbour):
    key = (3, 17, Purpose.SAMPLE)
    mine, theirs = (exponentials(*each, 20_000) for each in (key, neighbour(*key)))
    for shift in (0, 1, 2):
        ranks = [half.argsort().argsort() for half in (mine[: len(mine) - shift], theirs[shift:])]
        assert abs(np.corrcoef(ranks)[0, 1]) < 0.03  # four standard deviations


def test_noise_is_never_zero(monkeypatch):
    """Dividing weights by 0 would give infinity or NaN."""
    monkeypatch.setattr(noise, "_bits", lambda *_: np.array([2**64 - 1, 2**63], np.uint64))
    draws = noise.exponentials(1, 2, noise.Purpose.SAMPLE, 2)
    assert 0 < draws[0] < 1e-30
    assert draws[1] == np.float32(np.log(2))


@pytest.mark.parametrize("seed", [0, 1, 5, 2**64 - 1, 2**63])
def test_noise_is_the_same_for_a_part_of_a_row(seed):
    places = np.array([0, 7, 4999, 130])
    found = exponentials_at(hash_key(seed, 7, Purpose.SAMPLE), places)
    assert found.dtype == np.float32
    assert found.tolist() == exponentials(seed, 7, Purpose.SAMPLE, 5000)[places].tolist()


@pytest.mark.parametrize("zeros", [0.0, 0.5, 0.999])
def test_a_draw_is_the_best_ratio_of_weight_and_noise(zeros):
    random = np.random.default_rng(6)
    for seed in range(200):
        weights = random.exponential(size=5000).astype(np.float32) ** 4
        weights[1:][random.random(4999) < zeros] = 0
        ratios = weights / exponentials(seed, 3, Purpose.SAMPLE, 5000)
        assert draw(weights, hash_key(seed, 3, Purpose.SAMPLE)) == ratios.argmax()
