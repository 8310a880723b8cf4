"""Shared by engines that run one model in steps: calls, scheduling, KV bookkeeping, sampling."""
