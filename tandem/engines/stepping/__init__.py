"""What engines share that run one model in steps: calls, scheduling, KV bookkeeping, sampling."""
