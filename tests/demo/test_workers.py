import pytest

torch = pytest.importorskip("torch")

from tandem.demo.optimizer import Optimizer  # noqa: E402
from tandem.demo.workers import Workers  # noqa: E402


class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.embed = torch.nn.Embedding(16, 8)
        self.first = torch.nn.Linear(8, 8, bias=False)
        self.second = torch.nn.Linear(8, 16, bias=False)

    def forward(self, ids):
        return self.second(torch.tanh(self.first(self.embed(ids))))


def next_token_loss(model, rows):
    logits = model(rows[:, :-1])
    return torch.nn.functional.cross_entropy(logits.flatten(0, 1), rows[:, 1:].flatten())


ROWS = torch.arange(16).repeat(4, 1) % 7


def test_workers_together_compute_the_gradients_of_a_single_pass():
    model, alone = Model(), Model()
    loss = Workers(model, next_token_loss).backward(ROWS)
    expected = next_token_loss(alone, ROWS)
    expected.backward()
    assert loss == pytest.approx(expected.item())
    for ours, theirs in zip(model.parameters(), alone.parameters(), strict=True):
        torch.testing.assert_close(ours.grad, theirs.grad)


def test_training_with_workers_lowers_the_loss_and_is_deterministic():
    def run():
        model = Model()
        workers, optimizer = Workers(model, next_token_loss), Optimizer(model, 0.02, 0.01)
        losses = []
        for _ in range(20):
            losses.append(workers.backward(ROWS))
            optimizer.step(1.0, workers.pool)
        return losses

    losses = run()
    assert losses[-1] < losses[0] - 0.5
    assert losses == run()
