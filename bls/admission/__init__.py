"""Which requests may run now: KV reservations, queues, and the share of other loops."""
