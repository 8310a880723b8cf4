import numpy as np
import pytest

torch = pytest.importorskip("torch")

from tandem.demo.optimizer import Optimizer, rate_share  # noqa: E402
from tandem.demo.tokens import batch  # noqa: E402
from tandem.demo.train import window  # noqa: E402

STREAM = np.arange(1000, dtype=np.uint16)


def test_batches_are_consecutive_windows_of_the_token_stream():
    rows = batch(STREAM, index=0, rows=4, length=16)
    assert rows.shape == (4, 17)
    assert (rows.diff(dim=1) == 1).all()


def test_a_batch_depends_only_on_its_index():
    assert torch.equal(batch(STREAM, 7, 4, 16), batch(STREAM, 7, 4, 16))
    assert not torch.equal(batch(STREAM, 7, 4, 16), batch(STREAM, 8, 4, 16))


def test_an_epoch_repeats_no_window():
    windows = len(STREAM) // 16 - 2
    starts = [int(row[0]) for i in range(windows // 4) for row in batch(STREAM, i, 4, 16)]
    assert len(set(starts)) == len(starts)


def test_the_learning_rate_warms_up_holds_and_falls_to_zero():
    shares = [rate_share(step, steps=1000) for step in range(1000)]
    assert shares[0] < 0.05
    assert shares[100] == shares[499] == 1.0
    assert shares[-1] < 0.005


def test_training_windows_grow_toward_the_end():
    assert [window(step, 100) for step in (0, 80, 99)] == [512, 1024, 2048]


def test_the_optimizer_lowers_the_loss():
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(8, 8, bias=False), torch.nn.LayerNorm(8))
    inputs, outputs = torch.randn(2, 64, 8)
    optimizer, losses = Optimizer(model, 0.02, 0.01), []
    for _ in range(20):
        losses.append(torch.nn.functional.mse_loss(model(inputs), outputs))
        losses[-1].backward()
        optimizer.step(1.0)
    assert losses[-1] < losses[0] - 0.1
