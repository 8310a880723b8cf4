"""What proposes draft tokens: one module per drafter."""
