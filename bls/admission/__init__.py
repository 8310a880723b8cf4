"""Admission control: KV reservations, queues, and capacity shared with other loops."""
